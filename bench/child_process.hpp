// A child process on this machine that dies with this one and whose output is captured.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem::bench {

class ChildProcess {
 public:
  // Added to this process's own.
  using Environment = std::vector<std::pair<std::string, std::string>>;
  // Where the child's stdin comes from: this process's own, or lines of write_line.
  enum class Input : std::uint8_t { inherited, lines };
  // Captures the child's stdout and stderr. Errors: DRIVER.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> arguments,
                                                     const Environment& environment = {},
                                                     Input input = Input::inherited);
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const { return child_; }
  bool ended() const;
  // Waits for the first output line that begins with `begin`. Errors: DRIVER, with the output, if
  // the process ends first; TIMEOUT.
  Result<std::string> line_beginning(std::string_view begin, std::chrono::milliseconds most);
  // The first such line behind the one that this function returned last.
  Result<std::string> next_line_beginning(std::string_view begin, std::chrono::milliseconds most);
  // REQUIRES: Input::lines. Errors: DRIVER if the process has ended.
  Status write_line(std::string_view line);
  // Waits for the end and returns the output. Errors: DRIVER, with the output, if the exit status
  // is not 0; TIMEOUT.
  Result<std::string> output(std::chrono::milliseconds most);

 private:
  ChildProcess() = default;
  // The first line from `at` on that begins so; `at` is behind it then.
  Result<std::string> find_line(std::size_t& at, std::string_view begin, std::chrono::milliseconds most);
  // Waits for more output; false: the process ended.
  Result<bool> read_more(std::chrono::steady_clock::time_point until);

  std::string command_;
  std::string text_;
  std::size_t taken_ = 0;  // of text_, by next_line_beginning
  pid_t child_ = -1;
  int out_ = -1;
  FileDescriptor in_;
};

}  // namespace vmem::bench
