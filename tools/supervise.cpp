#include "tools/supervise.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "bench/exit_code.hpp"
#include "runtime/remote/guard.hpp"

namespace vmem::tools {
namespace {

constexpr int kPassedOn[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};

// True if the signal was sent to this process only; the terminal's signals also reach the program,
// which is in the same process group.
bool is_for_us_alone(const siginfo_t& signal) { return signal.si_code <= 0; }

// Waits for the program's end and returns its status.
int wait_for(pid_t program, const sigset_t& awaited) {
  for (;;) {
    siginfo_t signal{};
    if (::sigwaitinfo(&awaited, &signal) < 0) continue;
    if (signal.si_signo != SIGCHLD) {
      if (is_for_us_alone(signal)) (void)::kill(program, signal.si_signo);
      continue;
    }
    int status = 0;
    if (::waitpid(program, &status, WNOHANG) == program) return status;
  }
}

int end_as(int status) {
  if (!WIFSIGNALED(status)) return WEXITSTATUS(status);
  const int number = WTERMSIG(status);
  const rlimit none{0, 0};  // the program has left its core, if any
  (void)::setrlimit(RLIMIT_CORE, &none);
  (void)::signal(number, SIG_DFL);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  (void)::sigprocmask(SIG_UNBLOCK, &one, nullptr);
  (void)::raise(number);
  return 128 + number;
}

}  // namespace

int supervise(const Supervised& supervised) {
  std::unique_ptr<runtime::Guard> guard;
  if (supervised.lenders == Lenders::to_be_told) {
    auto made = runtime::Guard::of_run();
    if (!made) {
      fmt::print(stderr, "vmem run: {}\n", made.error().message);
      return bench::kExitFailed;
    }
    guard = *std::move(made);
    ::setenv(runtime::kGuardVariable, guard->path().c_str(), 1);
  }
  sigset_t awaited, before;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGCHLD);
  for (const int each : kPassedOn) sigaddset(&awaited, each);
  ::sigprocmask(SIG_BLOCK, &awaited, &before);
  const pid_t self = ::getpid();
  const pid_t program = ::fork();
  if (program == 0) {
    (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != self) ::_exit(128 + SIGKILL);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    ::execvp(supervised.words[0], supervised.words);
    ::_exit(supervised.cannot_run(errno));
  }
  if (program < 0) {
    fmt::print(stderr, "vmem run: no process for {}: {}\n", supervised.words[0], std::strerror(errno));
    return bench::kExitFailed;
  }
  if (guard) guard->start();
  const int status = wait_for(program, awaited);
  guard.reset();
  supervised.at_end();
  return end_as(status);
}

}  // namespace vmem::tools
