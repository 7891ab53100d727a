// Pinned host memory that the driver allocated for the program and kernels read in place: it may
// hold pointer tables filled by the CPU. Registered memory is excluded: the program may unmap it
// without notice.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

namespace vmem::intercept {

class PinnedMemory {
 public:
  // Made before the memory, so that adding it cannot fail.
  using Room = std::map<std::uintptr_t, std::uintptr_t>::node_type;
  static Room make_room() {
    std::map<std::uintptr_t, std::uintptr_t> one{{0, 0}};
    return one.extract(one.begin());
  }
  void add(Room room, std::uintptr_t base, std::size_t bytes) {
    const std::unique_lock lock(mutex_);
    ends_.erase(base);
    room.key() = base;
    room.mapped() = base + bytes;
    ends_.insert(std::move(room));
    if (base < low_.load(std::memory_order_relaxed)) low_.store(base, std::memory_order_relaxed);
    if (base + bytes > high_.load(std::memory_order_relaxed)) high_.store(base + bytes, std::memory_order_relaxed);
  }
  void remove(std::uintptr_t base) {
    const std::unique_lock lock(mutex_);
    ends_.erase(base);
  }
  // Only addresses in [first, first + bytes) may lie in pinned memory.
  struct Bounds {
    std::uintptr_t first;
    std::uintptr_t bytes;
  };
  Bounds bounds() const {
    const std::uintptr_t low = low_.load(std::memory_order_relaxed), high = high_.load(std::memory_order_relaxed);
    return {low, low < high ? high - low : 0};
  }
  bool holds(std::uintptr_t address) const {
    const Bounds all = bounds();
    if (address - all.first >= all.bytes) return false;
    const std::shared_lock lock(mutex_);
    const auto found = ends_.upper_bound(address);
    return found != ends_.begin() && std::prev(found)->second > address;
  }
  // If the address lies in pinned memory, calls use(word) for each word from there to the first
  // word that is not `wanted`.
  template <class Wanted, class Use>
  void each_word(std::uintptr_t address, Wanted&& wanted, Use&& use) const {
    const Bounds all = bounds();
    if (address - all.first >= all.bytes || address % sizeof(std::uintptr_t) != 0) return;
    const std::shared_lock lock(mutex_);  // keeps the memory from being freed while it is read
    auto found = ends_.upper_bound(address);
    if (found == ends_.begin()) return;
    --found;
    if (found->second <= address) return;
    const auto* word = reinterpret_cast<const std::uintptr_t*>(address);
    const auto* const end = word + (found->second - address) / sizeof *word;
    for (; word < end && wanted(*word); ++word) use(*word);
  }

 private:
  mutable std::shared_mutex mutex_;
  std::map<std::uintptr_t, std::uintptr_t> ends_;  // base -> end
  // Bounds of all pinned memory ever, so that a launch without such a pointer takes no lock.
  std::atomic<std::uintptr_t> low_{UINTPTR_MAX}, high_{0};
};

PinnedMemory& pinned_memory();
// Write-combined memory: the CPU reads it at a hundredth of the normal speed.
PinnedMemory& write_combined_memory();

}  // namespace vmem::intercept
