// The report for a sticky GPU error: the launches that may have caused it and the addresses they
// named. If the kernel log gives the fault address, also the owner of that memory and its recent
// history.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>

namespace vmem::intercept {

struct FunctionFacts;
// Records a launch that is being queued, in a ring per thread. A null function means a graph. No
// addresses: the launch's arguments were not read.
void note_launch(const FunctionFacts* function, CUstream stream,
                 std::optional<std::span<const std::uintptr_t>> addresses);

// Prints the report to stderr, once per process. REQUIRES: `result` is sticky (gpu::is_sticky).
void diagnose(CUresult result);

}  // namespace vmem::intercept
