// A child process to kill, stop and read from.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vmem::rdma {

class Process {
 public:
  explicit Process(std::vector<std::string> arguments) {
    std::array<int, 2> in{}, out{};
    EXPECT_EQ(::pipe2(in.data(), O_CLOEXEC) | ::pipe2(out.data(), O_CLOEXEC), 0);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    child_ = ::fork();
    if (child_ == 0) {
      ::dup2(in[0], STDIN_FILENO);
      ::dup2(out[1], STDOUT_FILENO);
      ::execvp(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Process() {
    signal(SIGKILL);
    wait();
    end_input();
    ::close(out_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void signal(int number) const {
    if (child_ > 0) ::kill(child_, number);
  }
  // Waits until the child has ended. Returns waitpid's status, or 0 if it had been waited for.
  int wait() {
    int status = 0;
    if (child_ > 0) ::waitpid(std::exchange(child_, -1), &status, 0);
    return status;
  }
  void end_input() {
    if (in_ >= 0) ::close(std::exchange(in_, -1));
  }
  // Stops the child and waits until it is stopped.
  void stop() const {
    signal(SIGSTOP);
    int status = 0;
    ::waitpid(child_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  // All lines of output so far.
  const std::vector<std::string>& said() {
    pollfd output{.fd = out_, .events = POLLIN, .revents = 0};
    while (::poll(&output, 1, 0) == 1) {
      std::array<char, 4096> buffer;
      const ssize_t got = ::read(out_, buffer.data(), buffer.size());
      ended_ = got == 0;
      if (got <= 0) break;
      text_.append(buffer.data(), static_cast<std::size_t>(got));
    }
    for (auto end = text_.find('\n'); end != std::string::npos; end = text_.find('\n')) {
      lines_.push_back(text_.substr(0, end));
      text_.erase(0, end + 1);
    }
    return lines_;
  }
  std::string first_line() { return line(0); }
  // Waits for that line, counted from 0.
  std::string line(std::size_t number) { return says_more(number) ? lines_[number] : "the process said nothing"; }
  // Writes to its standard input.
  void tell(std::string_view text) const {
    EXPECT_EQ(::write(in_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  // Waits for a line with this beginning, after `skipped` other such lines.
  bool says(std::string_view beginning, std::size_t skipped = 0) {
    for (std::size_t seen = 0; says_more(seen); ++seen) {
      if (lines_[seen].starts_with(beginning) && skipped-- == 0) return true;
    }
    return false;
  }

 private:
  // Waits for more than `seen` lines.
  bool says_more(std::size_t seen = 0) {
    while (said().size() <= seen) {
      pollfd output{.fd = out_, .events = POLLIN, .revents = 0};
      if (ended_ || ::poll(&output, 1, 20'000) != 1) return false;
    }
    return true;
  }
  pid_t child_ = -1;
  int in_ = -1, out_ = -1;
  bool ended_ = false;  // end of its output
  std::string text_;
  std::vector<std::string> lines_;
};

}  // namespace vmem::rdma
