// Lends a GPU's memory to other processes of the same machine and user, in pieces that they map as their own, and asks for it back.
// Taking it back needs the borrower: nobody can unmap another process's memory. So it is asked for with a deadline; what is not given
// back in time counts as overdue, and what a process holds counts as held until it gives it back or ends, whether it talks or not.
#pragma once

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
    std::uint64_t most_bytes = 0;  // that set_limit may name
    std::chrono::microseconds deadline = std::chrono::seconds(2);
    std::function<void()> on_change;  // by the lender's thread: less is held, or overdue, than before, or more
  };
  // Lends nothing yet. Errors: the driver's; INVALID_OPTION when nobody can connect to the path.
  static Result<std::unique_ptr<Lender>> create(Config config);
  // What is lent then stays with those who hold it, until they end.
  ~Lender();
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;

  // Any thread.
  // How much may be held, in all. What is beyond is asked back.
  void set_limit(std::uint64_t bytes);
  struct Usage {
    std::uint64_t limit_bytes = 0;
    std::uint64_t held_bytes = 0;  // by all
    std::uint64_t overdue_bytes =
        0;  // of these: asked back, and not given in time; or held by a process that does not talk any more
    std::uint32_t borrowers = 0;  // processes that hold something, or could
  };
  Usage usage() const;
  const std::string& path() const { return config_.path; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Borrower {
    OwnDescriptor socket;  // none: it has closed it, and may still hold something
    FileDescriptor end;    // readable once the process has ended
    Identity who;
    Clock::time_point since = Clock::now();
    Clock::time_point heard = since;  // its last message
    bool welcomed = false;
    Outbox outbox;
    std::map<std::uint64_t, std::uint64_t> pieces;  // bytes, by number
    std::uint64_t held_bytes = 0;
    std::uint64_t told_bytes = 0;          // that it may hold
    std::optional<Clock::time_point> due;  // while it holds more
    bool overdue = false;
  };
  explicit Lender(Config config) : config_(std::move(config)) {}
  void run();
  void wait();
  bool look();
  void accept_one();
  bool make_room();
  Status hear(Borrower& borrower);
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
  Clock::time_point accepts_from_{};  // later than now: there was no room for another connection
  mutable std::mutex mutex_;          // below
  std::uint64_t limit_bytes_ = 0;
  std::vector<std::unique_ptr<Borrower>> borrowers_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace vmem::peer
