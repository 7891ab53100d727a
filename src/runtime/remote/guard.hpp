// Watches borrowing processes and tells their lenders when a process ends, however it ends. `vmem
// run` guards the programs that it starts; each `vmem daemon` guards all programs of its user on
// its host. A borrowing process announces itself to the guard whose socket the environment names,
// or else to every daemon's guard. The guard opens a pidfd of it.
//
// A guard answers a starting process only after the lenders heard of all processes that ended
// before, so that the process finds their room.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/log_limit.hpp"
#include "runtime/remote/end_report.hpp"

namespace vmem::runtime {

// The path of a guard's socket. Empty: no guard is wanted.
inline constexpr const char* kGuardVariable = "VMEM_GUARD";

class Guard {
 public:
  // Both listen from now on, on a socket of this user: of_run's path goes into the environment of
  // programs, of_daemon's is found by programs. Errors: INVALID_OPTION for a directory that others
  // may enter; INTERNAL.
  static Result<std::unique_ptr<Guard>> of_run();
  static Result<std::unique_ptr<Guard>> of_daemon();
  // REQUIRES: the caller's other threads block the signals that the caller waits for; the guard's
  // thread inherits the mask.
  void start();
  // Reports every process that has ended by now.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  const std::string& path() const { return path_; }

 private:
  struct Watched {
    BorrowingNode node;
    FileDescriptor process;
    pid_t number = 0;  // 0: the process is not visible from here
  };
  // A connected process that has not announced itself yet.
  struct Greeting {
    FileDescriptor socket;
    std::chrono::steady_clock::time_point until;
  };
  Guard() = default;
  static Result<std::unique_ptr<Guard>> listen_at(const std::string& path);
  void run();
  bool wait() const;
  void accept_all();
  void hear_all();
  void welcome(int socket);
  void report_dead();
  void report(std::span<const BorrowingNode> dead);

  std::string path_;
  FileDescriptor listener_, stop_;
  // Owned by the thread and, after its end, by the destructor.
  std::vector<Watched> watched_;
  std::vector<BorrowingNode> dead_;  // not yet reported
  std::deque<Greeting> greetings_;   // the oldest first
  bool short_of_descriptors_ = false;
  LogLimit failures_;
  std::thread thread_;
};

// Announces this process as a borrower to its guards, if any. Without an answer no guard watches
// it: after its end its lenders keep its room for their grace period.
void announce_to_guard(const BorrowingNode& self);

}  // namespace vmem::runtime
