// Finds out which kernels fill pointer tables, by looking at what they wrote: the small allocations that a launch named are copied to
// the CPU and searched for addresses that the launch named. A function is looked at on its first launch that names a small allocation
// and another, on its second, fourth, eighth and so on, and always once it was seen to fill one. Until the verdict what it named is taken
// for tables.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

struct FunctionFacts;

// After a launch that names a small allocation was queued, while what it named is held.
void look_at_tables(runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                    CUstream stream);

}  // namespace vmem::intercept
