// Numbers runs of slots: each run is the pages of one source, in order, and has a value.
//
// Thread: any.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/status.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

template <class T>
class SlotRuns {
 public:
  // Returns the first slot of a new run. First fit. Errors: ADDRESS_SPACE.
  Result<SlotId> add(std::uint32_t count, T value) {
    const std::lock_guard lock(mutex_);
    SlotId first = 0;
    for (const auto& [begin, run] : runs_) {
      if (begin - first >= count) break;
      first = begin + run.count;
    }
    if (kEnd - first < count)
      return fail(VMEM_ERROR_ADDRESS_SPACE, "more pages are mapped than can be numbered; free some mappings");
    runs_.emplace(first, Run{count, std::move(value)});
    return first;
  }
  void erase(SlotId first) {
    const std::lock_guard lock(mutex_);
    runs_.erase(first);
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    runs_.clear();
  }
  struct Found {
    T value;
    std::uint32_t index = 0;  // in the run
  };
  Found find(SlotId slot) const {  // REQUIRES: in a run
    const std::lock_guard lock(mutex_);
    const auto& [first, run] = *std::prev(runs_.upper_bound(slot));
    return {run.value, slot - first};
  }

 private:
  static constexpr SlotId kEnd = SlotId{1} << 30;  // see SlotId
  struct Run {
    std::uint32_t count = 0;
    T value;
  };
  mutable std::mutex mutex_;
  std::map<SlotId, Run> runs_;  // by first slot; guarded by mutex_
};

}  // namespace vmem::tiers
