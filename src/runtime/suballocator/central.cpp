#include "runtime/suballocator/central.hpp"

#include <algorithm>

namespace vmem::runtime {

Central::Device::Device(SlabSource& source, StreamMarks& marks, BlockMap& map, int device) : pool(source, map, device) {
  for (std::uint32_t i = 0; i < kClasses; ++i) depots.emplace_back(marks, map);
}

Central::Device& Central::device(int index) {
  auto& slot = devices_[std::size_t(index)];
  if (Device* device = slot.load(std::memory_order_acquire); device != nullptr) return *device;
  const std::lock_guard lock(mutex_);
  if (Device* device = slot.load(std::memory_order_relaxed); device != nullptr) return *device;
  Device& made = *storage_.emplace_back(std::make_unique<Device>(source_, marks_, map_, index));
  slot.store(&made, std::memory_order_release);
  return made;
}

template <class Act>
void Central::for_each_device(Act act) const {
  for (const auto& slot : devices_) {
    if (Device* device = slot.load(std::memory_order_acquire); device != nullptr) act(*device);
  }
}

std::size_t Central::take_present(int index, std::uint32_t size_class, const Origin& origin,
                                  std::span<std::uintptr_t> out) {
  Device& owner = device(index);
  std::vector<Slab*> emptied;
  const std::size_t count = owner.depots[size_class].take(origin, out, emptied);
  owner.pool.put(emptied);
  return count;
}

Result<std::size_t> Central::take(int index, std::uint32_t size_class, const Origin& origin,
                                  std::span<std::uintptr_t> out) {
  if (const std::size_t count = take_present(index, size_class, origin, out); count != 0) return count;
  Device& owner = device(index);
  // Without the depot's mutex: the source may block, and other threads may find blocks meanwhile.
  VMEM_ASSIGN(Slab* const slab, owner.pool.take(size_class));
  return owner.depots[size_class].take_from(*slab, out);
}

void Central::put(int index, std::uint32_t size_class, const Origin& origin, Mark mark,
                  std::span<const std::uintptr_t> blocks) {
  Device& owner = device(index);
  std::vector<Slab*> emptied;
  owner.depots[size_class].put(origin, mark, blocks, emptied);
  owner.pool.put(emptied);
}

void Central::settle() {
  for_each_device([](Device& owner) {
    std::vector<Slab*> emptied;
    for (Depot& depot : owner.depots) depot.settle(emptied);
    owner.pool.put(emptied);
  });
}

bool Central::holds(const Origin& origin) const {
  bool held = false;
  for_each_device([&](const Device& owner) {
    held = held || std::ranges::any_of(owner.depots, [&](const Depot& depot) { return depot.holds(origin); });
  });
  return held;
}

void Central::end(const Origin& origin, const Origin& as, std::uint64_t mark) {
  for_each_device([&](Device& owner) {
    for (Depot& depot : owner.depots) depot.rename(origin, as, mark);
  });
}

Status Central::release_spare() {
  Status result;
  for_each_device([&](Device& owner) {
    if (auto released = owner.pool.release(0); !released && result) result = std::move(released);
  });
  return result;
}

std::size_t Central::slab_bytes() const {
  std::size_t granules = 0;
  for_each_device([&](const Device& owner) { granules += owner.pool.granules(); });
  return granules * kGranuleBytes;
}

std::size_t Central::metadata_bytes() const {
  std::size_t bytes = sizeof(*this);
  for_each_device([&](const Device& owner) {
    bytes += sizeof(Device) + owner.depots.size() * sizeof(Depot) + owner.pool.descriptor_bytes();
    bytes += map_.table_bytes(std::uint32_t(owner.pool.granules()));
    for (const Depot& depot : owner.depots) bytes += depot.waiting_bytes();
  });
  return bytes;
}

}  // namespace vmem::runtime
