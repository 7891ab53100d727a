// The process around: fork, and programs that use no GPU.
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

// How a process ends, and what is said of it on the way.
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
    void* nowhere = reinterpret_cast<void*>(8);  // where a parameter would be
    void* parameters[] = {nowhere, nowhere};
    (void)cuLaunchKernel(machine.function("add"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr);
  });
  expect_crash(false, [](const Machine&) {
    void (*volatile nothing)() = nullptr;
    nothing();
  });
}

// Run with an option that is wrong: the reason is said, and the call fails.
CASE(wrong_option) {
  const Machine machine;
  CUdeviceptr none = 0;
  REQUIRE(cuMemAlloc(&none, 4 * kMiB) == CUDA_ERROR_NOT_INITIALIZED);
  REQUIRE(cuMemAlloc(&none, 4 * kMiB) == CUDA_ERROR_NOT_INITIALIZED);
}

}  // namespace
}  // namespace vmem::test
