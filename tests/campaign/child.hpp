// A child process with a time limit and two captured outputs.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace vmem::test {

struct ChildOutcome {
  bool hung = false;  // killed at the limit
  int status = 0;     // as from waitpid
  std::string out, err;

  bool exited() const;
  int code() const;
  std::string words() const;  // how it ended
};

// Runs `body` in a fork of this process, which may have no other threads. Sends the child SIGTERM
// once its standard output contains `until`.
ChildOutcome run_child(const std::function<int()>& body, std::chrono::seconds limit, const std::string& until = "");
// The same with a program; adds `variables` ("NAME=value") to the environment.
ChildOutcome run_program(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                         std::chrono::seconds limit, const std::string& until = "");

}  // namespace vmem::test
