// A slab source over unused addresses, with streams whose progress the test controls.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "runtime/suballocator.hpp"

namespace vmem::runtime::testing {

inline vmem_stream stream(std::uintptr_t handle) { return reinterpret_cast<vmem_stream>(handle); }
inline const vmem_stream kDefault = stream(0);
inline const vmem_stream kLegacy = stream(1);
inline const vmem_stream kPerThread = stream(2);
inline const vmem_stream kA = stream(0xa000);
inline const vmem_stream kB = stream(0xb000);

class FakeSource : public SlabSource, public StreamMarks {
 public:
  static constexpr std::uintptr_t kBase = 0x7d0000000000;
  static constexpr std::size_t kGranule = std::size_t{2} << 20;

  explicit FakeSource(std::size_t granules = 4096) { free_.insert({0, granules}); }

  Result<std::uintptr_t> allocate_slabs(int device, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    ++allocations;
    if (failing_allocations > 0) {
      --failing_allocations;
      return fail(VMEM_ERROR_OUT_OF_MEMORY, "the test has no slabs");
    }
    for (auto run = free_.begin(); run != free_.end(); ++run) {
      const auto [first, count] = *run;
      const std::size_t wanted = bytes / kGranule;
      if (count < wanted) continue;
      free_.erase(run);
      if (count > wanted) free_.insert({first + wanted, count - wanted});
      used_[first] = {wanted, device};
      return kBase + first * kGranule;
    }
    return fail(VMEM_ERROR_OUT_OF_MEMORY, "the test's address space is full");
  }

  Status free_slabs(std::uintptr_t address) override {
    const std::lock_guard lock(mutex_);
    ++frees;
    if (failing_frees > 0) {
      --failing_frees;
      return fail(VMEM_ERROR_DRIVER, "the test keeps its slabs");
    }
    const auto used = used_.find((address - kBase) / kGranule);
    if (used == used_.end()) return fail(VMEM_ERROR_INTERNAL, "not a slab");
    auto [first, count] = std::pair(used->first, used->second.first);
    used_.erase(used);
    auto next = free_.lower_bound(first);
    if (next != free_.end() && first + count == next->first) {
      count += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin() && std::prev(next)->first + std::prev(next)->second == first) {
      std::prev(next)->second += count;
    } else {
      free_.insert({first, count});
    }
    return {};
  }

  std::size_t spare_bytes(int) const override { return std::size_t{16} << 20; }
  std::uintptr_t context() noexcept override { return current_context; }

  // The high half identifies the stream, the low half counts.
  Result<std::uint64_t> mark(const StreamId& id) override {
    const std::lock_guard lock(mutex_);
    ++marks;
    if (failing_marks > 0) {
      --failing_marks;
      return fail(VMEM_ERROR_DRIVER, "the test makes no marks");
    }
    const auto key = key_of(id);
    const auto index = streams_.try_emplace(key, streams_.size()).first->second;
    return std::uint64_t{index} << 32 | ++made_[index];
  }

  bool complete(std::uint64_t mark) override {
    if (always_complete) return true;
    const std::lock_guard lock(mutex_);
    const auto done = completed_.find(mark >> 32);
    return done != completed_.end() && std::uint32_t(mark) <= done->second;
  }

  // Completes all work queued on a stream so far.
  void finish(vmem_stream handle, std::uintptr_t context = 0) {
    const std::lock_guard lock(mutex_);
    const auto index = streams_.find({reinterpret_cast<std::uintptr_t>(handle), context});
    if (index != streams_.end()) completed_[index->second] = made_[index->second];
  }

  std::size_t used_granules() const {
    const std::lock_guard lock(mutex_);
    std::size_t total = 0;
    for (const auto& [first, run] : used_) total += run.first;
    return total;
  }
  // True if [address, address + bytes) lies in slabs handed out for the device.
  bool backs(std::uintptr_t address, std::size_t bytes, int device) const {
    const std::lock_guard lock(mutex_);
    const std::size_t offset = address - kBase;
    auto used = used_.upper_bound(offset / kGranule);
    if (used == used_.begin()) return false;
    --used;
    return used->second.second == device && offset + bytes <= (used->first + used->second.first) * kGranule;
  }

  static inline thread_local std::uintptr_t current_context = 0;
  std::atomic<bool> always_complete{false};
  std::atomic<int> failing_allocations{0}, failing_frees{0}, failing_marks{0};
  std::atomic<int> allocations{0}, frees{0}, marks{0};

 private:
  using Key = std::pair<std::uintptr_t, std::uintptr_t>;
  static Key key_of(const StreamId& id) { return {reinterpret_cast<std::uintptr_t>(id.handle), id.context}; }

  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> free_;                  // first granule → granules
  std::map<std::size_t, std::pair<std::size_t, int>> used_;  // first granule → (granules, device)
  std::map<Key, std::uint32_t> streams_;
  std::map<std::uint64_t, std::uint32_t> made_, completed_;
};

inline std::unique_ptr<Suballocator> make_suballocator(FakeSource& source, std::size_t granules = 4096) {
  auto made = Suballocator::create(source, source, FakeSource::kBase, granules * FakeSource::kGranule);
  return made ? *std::move(made) : nullptr;
}

}  // namespace vmem::runtime::testing
