#include "bench/child_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "bench/socket_pair.hpp"

namespace vmem::bench {
namespace {

using std::chrono::steady_clock;

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> environment_with(const ChildProcess::Environment& more) {
  std::vector<std::string> all;
  for (char** each = environ; *each != nullptr; ++each) {
    const std::string_view name = std::string_view(*each).substr(0, std::string_view(*each).find('='));
    bool replaced = false;
    for (const auto& [other, value] : more) replaced |= other == name;
    if (!replaced) all.emplace_back(*each);
  }
  for (const auto& [name, value] : more) all.push_back(fmt::format("{}={}", name, value));
  return all;
}

}  // namespace

Result<std::unique_ptr<ChildProcess>> ChildProcess::start(std::vector<std::string> arguments,
                                                          const Environment& environment, Input input) {
  std::unique_ptr<ChildProcess> process(new ChildProcess);
  process->command_ = fmt::format("{}", fmt::join(arguments, " "));
  std::array<int, 2> out{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0)
    return fail(VMEM_ERROR_DRIVER, fmt::format("'{}' was not started: {}", process->command_, std::strerror(errno)),
                errno);
  process->out_ = out[0];
  // Sockets and not a pipe: a line for a child that was killed shall raise no SIGPIPE.
  SocketPair in;
  if (input == Input::lines) {
    VMEM_ASSIGN(in, connect_pair(SocketKind::local));
    process->in_ = std::move(in.from);
  }
  // Allocate before the fork: another thread may hold the allocator's lock at the fork.
  const std::vector<char*> argv = pointers_to(arguments);
  std::vector<std::string> variables = environment_with(environment);
  const std::vector<char*> envp = pointers_to(variables);
  const pid_t parent = ::getpid();
  process->child_ = ::fork();
  if (process->child_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    if (in.to) ::dup2(in.to.get(), STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(out[1], STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(out[1]);
  if (process->child_ < 0)
    return fail(VMEM_ERROR_DRIVER, fmt::format("'{}' was not started: {}", process->command_, std::strerror(errno)),
                errno);
  return process;
}

ChildProcess::~ChildProcess() {
  if (child_ > 0) {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
}

Result<bool> ChildProcess::read_more(steady_clock::time_point until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady_clock::now()).count();
  pollfd readable{.fd = out_, .events = POLLIN, .revents = 0};
  const int polled = left <= 0 ? 0 : ::poll(&readable, 1, static_cast<int>(left));
  if (polled < 0 && errno == EINTR) return true;
  if (polled == 0) return fail(VMEM_ERROR_TIMEOUT, fmt::format("'{}' took too long; it said: {}", command_, text_));
  std::array<char, 4096> buffer;
  const ssize_t got = ::read(out_, buffer.data(), buffer.size());
  if (got > 0) text_.append(buffer.data(), static_cast<std::size_t>(got));
  return got > 0 || (got < 0 && errno == EINTR);
}

bool ChildProcess::ended() const {
  siginfo_t info{};
  const auto id = static_cast<id_t>(child_);
  return child_ < 0 || (::waitid(P_PID, id, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child_);
}

Result<std::string> ChildProcess::line_beginning(std::string_view begin, std::chrono::milliseconds most) {
  std::size_t at = 0;
  return find_line(at, begin, most);
}

Result<std::string> ChildProcess::next_line_beginning(std::string_view begin, std::chrono::milliseconds most) {
  return find_line(taken_, begin, most);
}

Result<std::string> ChildProcess::find_line(std::size_t& at, std::string_view begin, std::chrono::milliseconds most) {
  const auto until = steady_clock::now() + most;
  for (;;) {
    const std::size_t end = text_.find('\n', at);
    if (end == std::string::npos) {
      VMEM_ASSIGN(const bool more, read_more(until));
      if (more) continue;
      const std::string said = text_.substr(0, text_.find_last_not_of('\n') + 1);
      return fail(VMEM_ERROR_DRIVER, fmt::format("'{}' ended; it said: {}", command_, said));
    }
    std::string line = text_.substr(at, end - at);
    at = end + 1;
    if (line.starts_with(begin)) return line;
  }
}

Status ChildProcess::write_line(std::string_view line) {
  const std::string text = fmt::format("{}\n", line);
  for (std::size_t sent = 0; sent < text.size();) {
    const ssize_t put = ::send(in_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0)
      return fail(VMEM_ERROR_DRIVER,
                  fmt::format("'{}' takes no '{}': {}; it said: {}", command_, line, std::strerror(errno), text_),
                  errno);
    sent += static_cast<std::size_t>(put);
  }
  return {};
}

Result<std::string> ChildProcess::output(std::chrono::milliseconds most) {
  const auto until = steady_clock::now() + most;
  for (bool more = true; more;) {
    VMEM_ASSIGN(more, read_more(until));
  }
  int status = 0;
  ::waitpid(std::exchange(child_, -1), &status, 0);
  if (status != 0) {
    const std::string how = WIFSIGNALED(status) ? fmt::format("by signal {}", WTERMSIG(status))
                                                : fmt::format("with status {}", WEXITSTATUS(status));
    return fail(VMEM_ERROR_DRIVER, fmt::format("'{}' ended {}; it said: {}", command_, how, text_));
  }
  return text_;
}

}  // namespace vmem::bench
