// Borrows another process's GPU memory, piece by piece (lender.hpp): a frame pool's handle source.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/file_descriptor.hpp"
#include "base/log_limit.hpp"
#include "gpu/handles.hpp"
#include "peer/wire.hpp"
#include "tiers/frame_pool.hpp"

namespace vmem::peer {

class Borrower final : public tiers::HandleSource {
 public:
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    std::string path;
    std::chrono::milliseconds patience = std::chrono::seconds(5);  // wait for each answer
  };
  // Errors: INVALID_OPTION (no lender, or none for this process), TIMEOUT, UNSUPPORTED.
  static Result<std::unique_ptr<Borrower>> connect(Config config);
  ~Borrower() override;
  Borrower(const Borrower&) = delete;
  Borrower& operator=(const Borrower&) = delete;

  const std::array<unsigned char, 16>& device() const { return device_; }  // the GPU's UUID
  pid_t lender() const { return lender_.pid; }
  std::uint64_t most_bytes() const { return most_bytes_; }
  // Calls `on_limit` with the bytes that may be held: at once, and from this object's thread until
  // stop(). The caller returns any excess soon. When the lender ends, held pieces stay usable and
  // the limit becomes the held bytes.
  void start(std::function<void(std::uint64_t)> on_limit);
  void stop();

  // Thread: any.
  Result<CUmemGenericAllocationHandle> make(std::uint64_t bytes) override;
  Status release(CUmemGenericAllocationHandle handle) override;

 private:
  explicit Borrower(Config config) : config_(std::move(config)) {}
  Status greet();
  void run();
  std::optional<std::uint64_t> hear();
  void take_in(Received received);
  void say(const Message& message);
  void give(std::uint64_t number) { say({.kind = Kind::give, .number = number}); }

  Config config_;
  OwnDescriptor socket_;
  FileDescriptor wake_;
  FileDescriptor end_;  // pidfd of the lender: other processes may hold its socket end
  Identity lender_;
  std::array<unsigned char, 16> device_{};
  std::uint64_t most_bytes_ = 0;
  std::function<void(std::uint64_t)> on_limit_;
  std::thread thread_;

  std::mutex mutex_;  // protects the members below
  Outbox outbox_;
  std::condition_variable answered_;
  struct Wanted {
    bool answered = false;
    bool granted = false;
    FileDescriptor piece;  // none: not received
  };
  std::unordered_map<std::uint64_t, Wanted> wanted_;  // by number; make() waits for the answer
  struct Piece {
    std::uint64_t number, bytes;
  };
  std::unordered_map<CUmemGenericAllocationHandle, Piece> pieces_;
  std::uint64_t numbers_ = 0, limit_bytes_ = 0, held_bytes_ = 0;
  bool gone_ = false;   // the connection to the lender has ended
  bool ended_ = false;  // the lender process has ended
  bool stopping_ = false;
  LogLimit wanted_back_;  // the lender decides how often this is logged
};

}  // namespace vmem::peer
