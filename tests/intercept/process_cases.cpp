// Fork, crashes, and programs that use no GPU.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

CASE(no_cuda) { std::puts("a program without CUDA"); }

CASE(forked_child_is_refused_and_harmless) {
  const Machine machine;
  CUdeviceptr buffer = 0;
  CALL(cuMemAlloc(&buffer, 4 * kMiB));
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    CUdeviceptr none = 0;
    std::exit(cuMemAlloc(&none, 4 * kMiB) != CUDA_SUCCESS ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CALL(cuMemFree(buffer));
}

CASE(ends_without_exit_handlers) {
  const Machine machine;
  CUdeviceptr buffer = 0;
  CALL(cuMemAlloc(&buffer, 4 * kMiB));
  ::_exit(0);
}

// Checks how a child process ends, and whether its output blames vmem.
template <class Crash>
void expect_crash(bool blamed, Crash&& crash) {
  int pipe_ends[2];
  REQUIRE(pipe(pipe_ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    dup2(pipe_ends[1], STDERR_FILENO);
    const Machine machine;
    CUdeviceptr buffer = 0;
    CALL(cuMemAlloc(&buffer, 4 * kMiB));
    crash(machine);
    std::exit(0);
  }
  close(pipe_ends[1]);
  std::string said;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(pipe_ends[0], piece, sizeof piece)) > 0;) said.append(piece, std::size_t(got));
  close(pipe_ends[0]);
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  REQUIRE((said.find("the process crashed in vmem") != std::string::npos) == blamed);
}

CASE(crashes_are_blamed_on_who_made_them) {
  expect_crash(false, [](const Machine&) {
    volatile int* volatile nowhere = nullptr;
    *nowhere = 1;
  });
  expect_crash(true, [](const Machine& machine) {
    void* nowhere = reinterpret_cast<void*>(8);  // in place of a parameter
    void* parameters[] = {nowhere, nowhere};
    (void)cuLaunchKernel(machine.function("add"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  });
  expect_crash(false, [](const Machine&) {
    void (*volatile nothing)() = nullptr;
    nothing();
  });
}

// Run with an invalid option: the first allocation ends the program, and the reason is logged.
CASE(wrong_option) {
  const Machine machine;
  std::puts("the program began");
  CUdeviceptr none = 0;
  (void)cuMemAlloc(&none, 4 * kMiB);
  std::puts("the program went on");
}

}  // namespace
}  // namespace vmem::test
