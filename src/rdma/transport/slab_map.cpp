#include "rdma/transport/slab_map.hpp"

#include <fmt/format.h>

#include <iterator>

namespace vmem::rdma {
namespace {

std::uintptr_t address_of(ConstBytes span) { return reinterpret_cast<std::uintptr_t>(span.data()); }

}  // namespace

Status SlabMap::add(ConstBytes memory, void* handle) {
  if (memory.empty()) return fail(VMEM_ERROR_INVALID_VALUE, "no memory to register: 0 bytes");
  const std::uintptr_t first = address_of(memory);
  const std::lock_guard lock(mutex_);
  const auto next = slabs_.lower_bound(first);
  const bool overlaps_next = next != slabs_.end() && next->first - first < memory.size();
  const bool overlaps_previous =
      next != slabs_.begin() && first - std::prev(next)->first < std::prev(next)->second.bytes;
  if (overlaps_next || overlaps_previous)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("{} bytes at {:#x} overlap memory that is registered", memory.size(), first));
  slabs_.emplace(first, Entry{memory.size(), handle});
  return {};
}

void SlabMap::remove(ConstBytes memory) {
  const std::lock_guard lock(mutex_);
  slabs_.erase(address_of(memory));
}

Result<void*> SlabMap::find(ConstBytes span) const {
  const std::uintptr_t first = address_of(span);
  const std::lock_guard lock(mutex_);
  auto slab = slabs_.upper_bound(first);
  if (slab != slabs_.begin()) {
    --slab;
    const std::uintptr_t offset = first - slab->first;
    if (offset < slab->second.bytes && span.size() <= slab->second.bytes - offset) return slab->second.handle;
  }
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("{} bytes at {:#x} do not lie in registered memory", span.size(), first));
}

}  // namespace vmem::rdma
