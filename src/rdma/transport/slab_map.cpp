#include "rdma/transport/slab_map.hpp"

#include <fmt/format.h>

#include <utility>

namespace vmem::rdma {
namespace {

std::uintptr_t address_of(ConstBytes span) { return reinterpret_cast<std::uintptr_t>(span.data()); }

}  // namespace

Result<SlabMap::Place> SlabMap::add(ConstBytes memory, Handle handle) {
  if (memory.empty()) return fail(VMEM_ERROR_INVALID_VALUE, "no memory to register: 0 bytes");
  const std::lock_guard lock(mutex_);
  return slabs_.emplace(address_of(memory), Entry{memory.size(), std::move(handle)});
}

void SlabMap::remove(Place slab) {
  const std::lock_guard lock(mutex_);
  slabs_.erase(slab);
}

// The nearest slab that begins before the span has it, unless slabs overlap.
Result<SlabMap::Handle> SlabMap::find(ConstBytes span) const {
  const std::uintptr_t first = address_of(span);
  const std::lock_guard lock(mutex_);
  for (auto slab = slabs_.upper_bound(first); slab != slabs_.begin();) {
    --slab;
    const std::uintptr_t offset = first - slab->first;
    if (offset < slab->second.bytes && span.size() <= slab->second.bytes - offset) return slab->second.handle;
  }
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("{} bytes at {:#x} do not lie in registered memory", span.size(), first));
}

}  // namespace vmem::rdma
