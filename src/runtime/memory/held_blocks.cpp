#include "runtime/memory/held_blocks.hpp"

#include <fmt/format.h>

namespace vmem::runtime {

Status refuse_held_block(const ThreadSlots& slots, const Suballocator& small, std::uintptr_t base) {
  const pagetable::ThreadSlot* const slot = slots.known();
  if (slot == nullptr || slot->held() == 0) return {};
  const auto block = small.find(base);
  if (!block || block->base != base || !slot->holds_within(base, block->bytes)) return {};
  return fail(VMEM_ERROR_IN_USE, fmt::format("the allocation at {:#x} is still acquired; release it first", base));
}

}  // namespace vmem::runtime
