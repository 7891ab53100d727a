// Another process's GPU memory, piece by piece, as long as it lends it (lender.hpp): a source of a frame pool's handles.
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
    std::chrono::milliseconds patience = std::chrono::seconds(5);  // for each answer
  };
  // Errors: INVALID_OPTION (nobody lends there, or not to us), TIMEOUT.
  static Result<std::unique_ptr<Borrower>> connect(Config config);
  ~Borrower() override;
  Borrower(const Borrower&) = delete;
  Borrower& operator=(const Borrower&) = delete;

  const std::array<unsigned char, 16>& device() const { return device_; }  // UUID of the GPU whose memory it is
  pid_t lender() const { return lender_.pid; }
  std::uint64_t most_bytes() const { return most_bytes_; }
  // Called at once, and by a thread of this object's from then on: how much may be held. More than that is to be given back, soon.
  // A lender that ends leaves what is held with us, and lends no more. Until stop, after which it is not called.
  void start(std::function<void(std::uint64_t)> on_limit);
  void stop();

  // Any thread.
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
  FileDescriptor end_;  // readable once the lender has ended, whoever else has its side of the socket
  Identity lender_;
  std::array<unsigned char, 16> device_{};
  std::uint64_t most_bytes_ = 0;
  std::function<void(std::uint64_t)> on_limit_;
  std::thread thread_;

  std::mutex mutex_;  // below
  Outbox outbox_;
  std::condition_variable answered_;
  struct Wanted {
    bool answered = false;
    FileDescriptor piece;  // none: there is none
  };
  std::unordered_map<std::uint64_t, Wanted> wanted_;  // by number; who asked waits
  struct Piece {
    std::uint64_t number, bytes;
  };
  std::unordered_map<CUmemGenericAllocationHandle, Piece> pieces_;
  std::uint64_t numbers_ = 0, limit_bytes_ = 0, held_bytes_ = 0;
  bool gone_ = false;   // the lender does not talk any more
  bool ended_ = false;  // it has ended
  bool stopping_ = false;
  LogLimit wanted_back_;  // the lender decides how often
};

}  // namespace vmem::peer
