#pragma once

#include <cstdint>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

// Something may reach the allocation at `address` without naming it, from now on: it stays mapped where it is. `why`, for people, if that
// fails; addresses that are not vmem's are passed over.
void keep(runtime::Runtime& runtime, std::uintptr_t address, const char* why);

}  // namespace vmem::intercept
