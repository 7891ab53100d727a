// Pinned host memory that the program has from the driver, and that kernels read in place: pointer tables that the CPU fills may lie
// there. (Not what it registers: that may be unmapped without a word.)
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <shared_mutex>

namespace vmem::intercept {

class PinnedMemory {
 public:
  void add(std::uintptr_t base, std::size_t bytes) {
    const std::unique_lock lock(mutex_);
    ends_[base] = base + bytes;
    if (base < low_.load(std::memory_order_relaxed)) low_.store(base, std::memory_order_relaxed);
    if (base + bytes > high_.load(std::memory_order_relaxed)) high_.store(base + bytes, std::memory_order_relaxed);
  }
  void remove(std::uintptr_t base) {
    const std::unique_lock lock(mutex_);
    ends_.erase(base);
  }
  // Of all addresses, those from first on, so many, may lie in pinned memory.
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
  // If the address lies in pinned memory: use(word) for each word from there on, up to the first that is not `wanted`.
  template <class Wanted, class Use>
  void each_word(std::uintptr_t address, Wanted&& wanted, Use&& use) const {
    const Bounds all = bounds();
    if (address - all.first >= all.bytes || address % sizeof(std::uintptr_t) != 0) return;
    const std::shared_lock lock(mutex_);  // while it is read it is not freed
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
  std::map<std::uintptr_t, std::uintptr_t> ends_;  // by where it begins
  // All of it lies between, so that a launch that passes no such pointer takes no lock.
  std::atomic<std::uintptr_t> low_{UINTPTR_MAX}, high_{0};
};

PinnedMemory& pinned_memory();
// The CPU reads this kind at a hundredth of its speed.
PinnedMemory& write_combined_memory();

}  // namespace vmem::intercept
