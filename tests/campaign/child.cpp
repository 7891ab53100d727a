#include "campaign/child.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>

namespace vmem::test {
namespace {

using Clock = std::chrono::steady_clock;

struct Pipe {
  Pipe() {
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  }
  ~Pipe() {
    ::close(ends[0]);
    close_writer();
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void close_writer() {
    if (ends[1] >= 0) ::close(ends[1]);
    ends[1] = -1;
  }
  std::array<int, 2> ends{};
};

// False at the end of the output.
bool take(int descriptor, std::string& text) {
  std::array<char, 4096> part;
  const ssize_t got = ::read(descriptor, part.data(), part.size());
  if (got > 0) text.append(part.data(), std::size_t(got));
  return got > 0;
}

class Listener {
 public:
  Listener(pid_t child, Clock::time_point end, const std::string& until) : child_(child), end_(end), until_(until) {}

  void listen(const Pipe& out, const Pipe& err, ChildOutcome& outcome) {
    pollfd watched[]{{out.ends[0], POLLIN, 0}, {err.ends[0], POLLIN, 0}};
    while (watched[0].fd >= 0 || watched[1].fd >= 0) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
      if (left <= 0 || ::poll(watched, 2, int(left)) == 0) return give_up(outcome);
      for (pollfd& each : watched) {
        if (each.fd < 0 || each.revents == 0) continue;
        if (!take(each.fd, &each == watched ? outcome.out : outcome.err)) each.fd = -1;
      }
      if (!told_ && !until_.empty() && outcome.out.contains(until_)) told_ = ::kill(child_, SIGTERM) == 0;
    }
  }

 private:
  void give_up(ChildOutcome& outcome) const {
    outcome.hung = true;
    ::kill(child_, SIGKILL);
  }
  const pid_t child_;
  const Clock::time_point end_;
  const std::string& until_;
  bool told_ = false;
};

}  // namespace

bool ChildOutcome::exited() const { return !hung && WIFEXITED(status); }
int ChildOutcome::code() const { return exited() ? WEXITSTATUS(status) : -1; }

std::string ChildOutcome::words() const {
  if (hung) return "did not end";
  return exited() ? fmt::format("ended with {}", code()) : fmt::format("was ended by signal {}", WTERMSIG(status));
}

ChildOutcome run_child(const std::function<int()>& body, std::chrono::seconds limit, const std::string& until) {
  Pipe out, err;
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(out.ends[1], STDOUT_FILENO);
    ::dup2(err.ends[1], STDERR_FILENO);
    ::_exit(body());
  }
  out.close_writer();
  err.close_writer();
  ChildOutcome outcome;
  Listener(child, Clock::now() + limit, until).listen(out, err, outcome);
  ::waitpid(child, &outcome.status, 0);
  return outcome;
}

ChildOutcome run_program(const std::vector<std::string>& words, const std::vector<std::string>& variables,
                         std::chrono::seconds limit, const std::string& until) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  return run_child(
      [&] {
        for (const std::string& variable : variables) ::putenv(const_cast<char*>(variable.c_str()));
        ::execv(argv[0], argv.data());
        return 127;
      },
      limit, until);
}

}  // namespace vmem::test
