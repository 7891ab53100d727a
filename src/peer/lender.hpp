// Lends a GPU's memory to other processes of the same user on this machine, in pieces that the
// borrowers map. No process can unmap another's memory, so the lender asks for memory back, with a
// deadline. Memory not returned by then counts as overdue. A piece counts as held until its
// borrower returns it or ends, even if the borrower has disconnected.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log_limit.hpp"
#include "gpu/driver.hpp"
#include "peer/wire.hpp"

namespace vmem::peer {

class Lender {
 public:
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    CUdevice device = 0;
    CUcontext context = nullptr;
    std::string path;              // of the socket
    std::uint64_t most_bytes = 0;  // upper bound of set_limit
    std::chrono::microseconds deadline = std::chrono::seconds(2);
    // On the lender's thread: held or overdue bytes changed. May be empty.
    std::function<void()> on_change;
  };
  // Lends nothing before set_limit. Errors: the driver's; INVALID_OPTION if the path cannot be
  // used; UNSUPPORTED.
  static Result<std::unique_ptr<Lender>> create(Config config);
  // Lent pieces stay with their borrowers until those end.
  ~Lender();
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  // Thread: any.
  // Limits the bytes held by all borrowers together, and asks for the excess back.
  void set_limit(std::uint64_t bytes);
  struct Usage {
    std::uint64_t limit_bytes = 0;
    std::uint64_t held_bytes = 0;  // by all borrowers
    // Part of held_bytes: not returned in time, or held by a disconnected process.
    std::uint64_t overdue_bytes = 0;
    std::uint32_t borrowers = 0;  // connected processes, and disconnected ones that hold pieces
    pid_t largest = 0;            // of the borrower that holds most; 0: nobody holds anything
  };
  Usage usage() const;
  const std::string& path() const { return config_.path; }
  const std::array<unsigned char, 16>& device() const { return device_; }  // the GPU's UUID

 private:
  using Clock = std::chrono::steady_clock;
  struct Borrower {
    OwnDescriptor socket;  // none: disconnected, may still hold pieces
    FileDescriptor end;    // pidfd, readable once the process has ended
    Identity who;
    Clock::time_point since = Clock::now();
    Clock::time_point heard = since;  // time of its last message
    bool welcomed = false;
    Outbox outbox;
    std::map<std::uint64_t, std::uint64_t> pieces;  // bytes by number
    std::uint64_t held_bytes = 0;
    std::uint64_t told_bytes = 0;          // limit last sent to it
    std::optional<Clock::time_point> due;  // set while it holds more than that
    bool overdue = false;
  };
  explicit Lender(Config config) : config_(std::move(config)) {}
  void run();
  void wait();
  bool look();
  void accept_one();
  bool make_room();
  Status hear(Borrower& borrower);
  void hear_returns(Borrower& borrower);
  Status answer(Borrower& borrower, const Message& message);
  Status welcome(Borrower& borrower, const Message& hello);
  Status lend(Borrower& borrower, const Message& wanted);
  Result<int> make_piece(std::uint64_t bytes) const;
  static Status take_back(Borrower& borrower, std::uint64_t number);
  void tell_limits();
  void flush_all();
  std::optional<Clock::time_point> next_due() const;
  void find_overdue();
  void hang_up(Borrower& borrower, const Error& why);
  std::uint64_t held_bytes() const;
  Usage sum() const;

  Config config_;
  std::array<unsigned char, 16> device_{};
  Listener listener_;
  FileDescriptor wake_;
  LogLimit strangers_, not_lent_, late_, held_;
  Clock::time_point accepts_from_{};  // later than now after a failed accept
  mutable std::mutex mutex_;          // protects limit_bytes_, borrowers_ and stopping_
  std::uint64_t limit_bytes_ = 0;
  std::vector<std::unique_ptr<Borrower>> borrowers_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vmem::peer
