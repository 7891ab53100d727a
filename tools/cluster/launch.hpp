// Starts a process that outlives this one and its terminal: in a session of its own, with its
// output in a log file.
//
// In two steps, so that a process is on record before it runs: if this process dies in between, the
// new one ends without having run.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/process_id.hpp"
#include "base/status.hpp"

namespace vmem::tools::local_cluster {

struct LaunchCommand {
  std::vector<std::string> words;        // the first is the program's path
  std::vector<std::string> environment;  // NAME=VALUE
};

class Launch {
 public:
  // Errors: DRIVER if the kernel makes no process.
  static Result<Launch> prepare(const LaunchCommand& command, const FileDescriptor& log);
  Launch(Launch&& other) noexcept
      : command_(std::move(other.command_)),
        process_(std::exchange(other.process_, {})),
        gate_(std::move(other.gate_)),
        failure_(std::move(other.failure_)) {}
  Launch& operator=(Launch&&) = delete;
  ~Launch();  // ends the process if it was not let go

  const ProcessId& process() const { return process_; }
  // Runs the program. Errors: INVALID_OPTION if it cannot be run; the process has ended then.
  Status let_go();

 private:
  Launch(std::string command, ProcessId process, FileDescriptor gate, FileDescriptor failure)
      : command_(std::move(command)), process_(process), gate_(std::move(gate)), failure_(std::move(failure)) {}

  std::string command_;
  ProcessId process_;
  FileDescriptor gate_;     // the process runs the program after a byte, and ends at its closing
  FileDescriptor failure_;  // gets errno if the program cannot be run
};

}  // namespace vmem::tools::local_cluster
