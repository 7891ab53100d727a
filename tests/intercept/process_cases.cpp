// The process around: fork, and programs that use no GPU.
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

// Run with an option that is wrong: the reason is said, and the call fails.
CASE(wrong_option) {
  const Machine machine;
  CUdeviceptr none = 0;
  REQUIRE(cuMemAlloc(&none, 4 * kMiB) == CUDA_ERROR_NOT_INITIALIZED);
  REQUIRE(cuMemAlloc(&none, 4 * kMiB) == CUDA_ERROR_NOT_INITIALIZED);
}

}  // namespace
}  // namespace vmem::test
