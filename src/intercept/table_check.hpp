// Finds out which kernels fill pointer tables, by looking at what they wrote: the small allocations that a launch named, and what lies
// behind its pointers into large ones, are copied to the CPU and searched for addresses of allocations. A function is looked at on its
// first launch that names two addresses, on its second, fourth, eighth and so on, and always once it was seen to fill a table. Until
// the verdict what it named is taken for tables of all that it named.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

struct FunctionFacts;

// After the launch was queued, while what it named is held.
void look_at_tables(runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                    const runtime::LaunchHolds& holds, CUstream stream);
// Before a launch: what looks of this thread have shown by now.
void learn_of_tables(const runtime::Runtime& runtime);

}  // namespace vmem::intercept
