// Whoever sees programs end, however they end, tells their lenders: `vmem run`, for the programs that it starts, and each `vmem
// daemon`, for all programs of its user on its host. A process that borrows says so to the guard whose socket the environment
// names or, without one, to those of all daemons; a guard opens a pidfd of it.
//
// An answer to a process that begins comes after the lenders heard of all that ended before: it finds their room.
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
#include "runtime/end_report.hpp"

namespace vmem::runtime {

// The path of a guard's socket. Empty: nobody is to watch.
inline constexpr const char* kGuardVariable = "VMEM_GUARD";

class Guard {
 public:
  // Both listen from now on, on a socket of this user: one that the environment of programs names, or one that programs find.
  // Errors: INVALID_OPTION for a directory that others may enter; INTERNAL.
  static Result<std::unique_ptr<Guard>> of_run();
  static Result<std::unique_ptr<Guard>> of_daemon();
  // The caller's other threads, if any, block the signals that it waits for; the guard's thread inherits that.
  void start();
  // Reports all that have ended until now.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;
  const std::string& path() const { return path_; }

 private:
  struct Watched {
    BorrowingNode node;
    FileDescriptor process;
    pid_t number = 0;  // 0: of a process that cannot be seen from here
  };
  // A process that has not yet said who it is.
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
  // The thread's, and the destructor's after its end.
  std::vector<Watched> watched_;
  std::vector<BorrowingNode> dead_;  // not yet reported
  std::deque<Greeting> greetings_;   // the eldest first
  bool short_of_descriptors_ = false;
  LogLimit failures_;
  std::thread thread_;
};

// Says to the guards of this process, if there are any, that it borrows. Without an answer it is guarded by nobody: its lenders
// keep its room for a while after its end.
void announce_to_guard(const BorrowingNode& self);

}  // namespace vmem::runtime
