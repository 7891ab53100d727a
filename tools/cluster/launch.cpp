#include "tools/cluster/launch.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <optional>

namespace vmem::tools::local_cluster {
namespace {

struct Channel {
  FileDescriptor ours, theirs;
};

// Sockets and not a pipe: a write to a process that was killed shall raise no SIGPIPE.
std::optional<Channel> make_channel() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return std::nullopt;
  return Channel{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> all;
  for (const std::string& word : words) all.push_back(const_cast<char*>(word.c_str()));
  all.push_back(nullptr);
  return all;
}

// What the child needs, made before the fork: it may only make system calls.
struct Prepared {
  std::vector<char*> words, environment;
  int gate = -1, failure = -1, log = -1, nothing = -1;
};

// Waits for a byte; false: the other end was closed.
bool let_in(int gate) {
  char byte = 0;
  ssize_t got = 0;
  do {
    got = ::read(gate, &byte, 1);
  } while (got < 0 && errno == EINTR);
  return got == 1;
}

// The program gets no signal state of ours.
void reset_signals() {
  for (int each = 1; each < NSIG; ++each) (void)::signal(each, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  (void)::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_in_child(const Prepared& prepared) {
  (void)::setsid();
  if (!let_in(prepared.gate)) ::_exit(0);
  ::dup2(prepared.nothing, STDIN_FILENO);
  ::dup2(prepared.log, STDOUT_FILENO);
  ::dup2(prepared.log, STDERR_FILENO);
  // Whoever waits for the end of a pipe of ours shall not wait for the program.
  (void)::close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_CLOEXEC);
  reset_signals();
  ::execve(prepared.words[0], prepared.words.data(), prepared.environment.data());
  const int error = errno;
  (void)!::write(prepared.failure, &error, sizeof(error));
  ::_exit(127);
}

std::unexpected<Error> no_process(const std::string& program) {
  const int error = errno;
  return fail(VMEM_ERROR_DRIVER, fmt::format("no process for {}: {}", program, std::strerror(error)), error);
}

}  // namespace

Result<Launch> Launch::prepare(const LaunchCommand& command, const FileDescriptor& log) {
  const std::string& program = command.words.front();
  auto gate = make_channel(), failure = make_channel();
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!gate || !failure || !nothing) return no_process(program);
  const Prepared prepared{.words = pointers(command.words),
                          .environment = pointers(command.environment),
                          .gate = gate->theirs.get(),
                          .failure = failure->theirs.get(),
                          .log = log.get(),
                          .nothing = nothing.get()};
  const pid_t child = ::fork();
  if (child < 0) return no_process(program);
  if (child == 0) {
    ::close(gate->ours.get());  // or it would keep its own gate open
    run_in_child(prepared);
  }
  return Launch(program, process_with(child).value_or(ProcessId{.pid = child}), std::move(gate->ours),
                std::move(failure->ours));
}

Launch::~Launch() {
  if (!gate_) return;
  gate_.reset();
  if (process_.pid > 0) (void)::waitpid(process_.pid, nullptr, 0);
}

Status Launch::let_go() {
  const char byte = 1;
  const bool told = ::send(gate_.get(), &byte, 1, MSG_NOSIGNAL) == 1;
  gate_.reset();
  int error = told ? 0 : ECHILD;
  ssize_t got = 0;
  do {
    got = ::read(failure_.get(), &error, sizeof(error));
  } while (got < 0 && errno == EINTR);
  if (told && got == 0) return {};
  (void)::waitpid(process_.pid, nullptr, 0);
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} cannot be run: {}", command_, std::strerror(error)), error);
}

}  // namespace vmem::tools::local_cluster
