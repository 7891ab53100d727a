// Another process on this machine that ends with this one, whatever happens, and is listened to.
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
  using Environment = std::vector<std::pair<std::string, std::string>>;  // beside what this process has
  // What it writes to stdout and stderr is kept. Errors: DRIVER.
  static Result<std::unique_ptr<ChildProcess>> start(std::vector<std::string> arguments,
                                                     const Environment& environment = {});
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t id() const { return child_; }
  bool ended() const;
  // The first line that it writes and that begins so. Errors: DRIVER, with what it wrote, if it
  // ends before; TIMEOUT.
  Result<std::string> line_beginning(std::string_view begin, std::chrono::milliseconds most);
  // What it wrote until it ended. Errors: DRIVER, with what it wrote, if it ended with another status than 0; TIMEOUT.
  Result<std::string> output(std::chrono::milliseconds most);

 private:
  ChildProcess() = default;
  // Until there is more; false: it ended.
  Result<bool> read_more(std::chrono::steady_clock::time_point until);

  std::string command_;
  std::string text_;
  pid_t child_ = -1;
  int out_ = -1;
};

}  // namespace vmem::bench
