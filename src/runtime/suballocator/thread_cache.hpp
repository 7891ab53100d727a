// The free blocks that one thread keeps: a bin per size class for each recently used (device,
// stream).
//
// Only the owner adds and moves blocks. Other threads may take blocks at any time (trim, the end of
// a stream), so a slot is emptied by an atomic exchange: the thread that reads the block owns it.
// The owner's accesses stay in its own cache lines until another thread takes. A shelf's device and
// stream change only under the mutex, which other threads hold to take blocks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "runtime/suballocator.hpp"
#include "runtime/suballocator/size_classes.hpp"

namespace vmem::runtime {

inline constexpr std::size_t kMostBin = 64;

class Shelf {
 public:
  // Written by the owner under the cache's mutex.
  StreamId stream;
  int device = 0;

  // Owner only.
  bool is_for(int wanted_device, const StreamId& wanted) const noexcept {
    return stream == wanted && device == wanted_device;
  }
  bool full(std::uint32_t size_class) const noexcept { return counts_[size_class] == kSizeClasses[size_class].cached; }
  // REQUIRES: not full.
  void push(std::uint32_t size_class, std::uintptr_t block) noexcept {
    slots_[kFirst[size_class] + counts_[size_class]++].store(block, std::memory_order_release);
  }
  // The last block added, or 0. Adds the number of slots consumed, empty ones included, to
  // `emptied`.
  std::uintptr_t pop(std::uint32_t size_class, std::uint32_t& emptied) noexcept {
    while (counts_[size_class] != 0) {
      ++emptied;
      auto& slot = slots_[kFirst[size_class] + --counts_[size_class]];
      if (const std::uintptr_t block = slot.exchange(0, std::memory_order_acquire); block != 0) return block;
    }
    return 0;
  }
  // Moves the older half of a bin into `out` and closes the gap; returns the number of blocks in
  // `out`.
  std::size_t pop_older_half(std::uint32_t size_class, std::array<std::uintptr_t, kMostBin>& out) noexcept;
  std::uint32_t count(std::uint32_t size_class) const noexcept { return counts_[size_class]; }
  void reset_counts() noexcept { counts_.fill(0); }

  // For the owner, and holders of the cache's mutex. Returns the number of blocks in `out`.
  std::size_t take_all(std::uint32_t size_class, std::array<std::uintptr_t, kMostBin>& out) noexcept;

  std::uint64_t last_used = 0;  // owner only

 private:
  static constexpr std::array<std::uint16_t, kClasses + 1> kFirst = [] {
    std::array<std::uint16_t, kClasses + 1> first{};
    for (std::uint32_t i = 0; i < kClasses; ++i) first[i + 1] = std::uint16_t(first[i] + kSizeClasses[i].cached);
    return first;
  }();

  std::array<std::uint8_t, kClasses> counts_{};  // owner only; slots at and above it are empty
  std::array<std::atomic<std::uintptr_t>, kFirst[kClasses]> slots_{};
};

class alignas(64) ThreadCache {
 public:
  static constexpr std::size_t kMostShelves = 32;
  static constexpr std::int64_t kMostBytes = 32 << 20;

  explicit ThreadCache(std::uint64_t thread_number) : number(thread_number) {}

  const std::uint64_t number;  // of the thread, never reused

  // Owner only: the shelf for a stream, or null.
  Shelf* shelf(int device, const StreamId& stream) noexcept {
    if (last_ != nullptr && last_->is_for(device, stream)) [[likely]]
      return last_;
    return search(device, stream);
  }
  // A shelf for a new stream: a fresh one, or at the limit the least recently used, which the
  // caller must empty first.
  Shelf& oldest_or_new();
  void dedicate(Shelf& shelf, int device, const StreamId& stream);
  void account(std::int64_t live_bytes) noexcept {
    live_.store(live_.load(std::memory_order_relaxed) + live_bytes, std::memory_order_relaxed);
  }
  // Owner only. Counts blocks taken by other threads until the owner meets their empty slots.
  std::int64_t cached_bytes = 0;

  // Any thread. Bytes that this thread allocated less those that it freed.
  std::int64_t live_bytes() const noexcept { return live_.load(std::memory_order_relaxed); }

  std::mutex mutex;                             // taken after the registry's, before a depot's
  std::vector<std::unique_ptr<Shelf>> shelves;  // the owner adds under the mutex

 private:
  Shelf* search(int device, const StreamId& stream) noexcept;

  Shelf* last_ = nullptr;
  std::uint64_t tick_ = 0;
  std::atomic<std::int64_t> live_{0};
};

}  // namespace vmem::runtime
