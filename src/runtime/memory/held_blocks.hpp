// Small allocations that a thread holds. The mover sees their pages only.
#pragma once

#include "base/status.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

// Errors: IN_USE if the calling thread holds the small allocation at `base`. Other threads' holds
// cannot be checked.
Status refuse_held_block(const ThreadSlots& slots, const Suballocator& small, std::uintptr_t base);

}  // namespace vmem::runtime
