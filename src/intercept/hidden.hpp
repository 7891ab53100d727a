#pragma once

#include <cstdint>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

// Keeps the allocation at `address` mapped in its present place from now on, because work may reach
// it without naming it. On failure logs `why`. Addresses outside vmem's range are ignored.
void keep(runtime::Runtime& runtime, std::uintptr_t address, const char* why);

}  // namespace vmem::intercept
