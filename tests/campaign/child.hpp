// A child process with a time limit, whose two outputs are kept.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace vmem::test {

struct ChildOutcome {
  bool hung = false;  // it was killed, because the limit had passed
  int status = 0;     // as waitpid says
  std::string out, err;

  bool exited() const;
  int code() const;
  std::string words() const;  // how it ended
};

// Runs `body` in a fork of this process, which may have no other threads. `until`: having said this, it gets SIGTERM.
ChildOutcome run_child(const std::function<int()>& body, std::chrono::seconds limit, const std::string& until = "");
// The same with a program, and with variables ("NAME=value") beside those that there are.
ChildOutcome run_program(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                         std::chrono::seconds limit, const std::string& until = "");

}  // namespace vmem::test
