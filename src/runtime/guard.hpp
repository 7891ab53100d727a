// Whoever started programs sees them end, however they end, and tells their lenders. A process that borrows says so to the
// guard whose socket the environment names; the guard opens a pidfd of it.
//
// An answer to a process that begins comes after the lenders heard of all that ended before: it finds their room.
// Processes that connect and say nothing keep nobody waiting, and none makes the guard watch more than a few nodes.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log_limit.hpp"
#include "runtime/end_report.hpp"

namespace vmem::runtime {

inline constexpr const char* kGuardVariable = "VMEM_GUARD";  // the path of its socket

class Guard {
 public:
  // Listens from now on, on a socket of this user. Errors: INVALID_OPTION for a directory that others may enter; INTERNAL.
  static Result<std::unique_ptr<Guard>> create();
  // The caller's other threads, if any, block the signals that it waits for; the guard's thread inherits that.
  void start();
  // Reports all that have ended until now.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  const std::string& path() const { return path_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Watched {
    BorrowingNode node;
    FileDescriptor process;
    pid_t number = 0;
  };
  struct Caller {  // connected, and has not said yet what it borrows
    FileDescriptor socket;
    Clock::time_point until;
  };
  Guard() = default;
  void run();
  void wait();
  void accept_all();
  void hear_callers();
  void welcome(const FileDescriptor& caller);
  bool watch(BorrowingNode node, const FileDescriptor& caller);
  void report_dead();

  std::string path_;
  FileDescriptor listener_, stop_;
  // The thread's, and the destructor's after its end.
  std::vector<Watched> watched_;
  std::deque<Caller> callers_;        // in the order in which they came
  Clock::time_point accepts_from_{};  // later than now: no connection could be accepted
  LogLimit not_reported_;
  std::thread thread_;
};

// Says to the guard of this process's environment, if there is one, that this process borrows. Without an answer it is
// guarded by nobody: its lenders keep its room for a while after its end.
void announce_to_guard(const BorrowingNode& self);

}  // namespace vmem::runtime
