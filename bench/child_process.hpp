// A child process on this machine that dies with this one and whose output is captured.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.hpp"

namespace vmem::bench {

class ChildProcess {
 public:
  // Added to this process's own.
  using Environment = std::vector<std::pair<std::string, std::string>>;
  // Captures the child's stdout and stderr. Errors: DRIVER.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> arguments,
                                                     const Environment& environment = {});
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const { return child_; }
  bool ended() const;
  // Waits for the first output line that begins with `begin`. Errors: DRIVER, with the output, if
  // the process ends first; TIMEOUT.
  Result<std::string> line_beginning(std::string_view begin, std::chrono::milliseconds most);
  // Waits for the end and returns the output. Errors: DRIVER, with the output, if the exit status
  // is not 0; TIMEOUT.
  Result<std::string> output(std::chrono::milliseconds most);

 private:
  ChildProcess() = default;
  // Waits for more output; false: the process ended.
  Result<bool> read_more(std::chrono::steady_clock::time_point until);

  std::string command_;
  std::string text_;
  pid_t child_ = -1;
  int out_ = -1;
};

}  // namespace vmem::bench
