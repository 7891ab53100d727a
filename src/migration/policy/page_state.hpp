// The policy's record of each page and region.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "migration/policy/policy.hpp"
#include "migration/policy/reuse_clock.hpp"
#include "migration/policy/scan.hpp"

namespace vmem::migration {

class Shelf;
struct DeviceState;

// Outlives residency: a page read back from below is judged by its earlier uses.
struct PageState {
  static constexpr std::uint8_t kNoList = 127;
  static constexpr std::uint8_t kBurstsMax = 15;

  PageId newer;  // neighbours in the shelf's list; region 0: none
  PageId older;
  Ticks last = 0;                    // last use, or arrival of a prefetched page
  std::uint32_t list : 7 = kNoList;  // the shelf's list with the page; kNoList: not in HBM
  std::uint32_t last_distance : 7 = ReuseDistance::kUnknown;
  std::uint32_t previous_distance : 7 = ReuseDistance::kUnknown;
  // The last distance was like the one before the previous.
  std::uint32_t alternates : 1 = false;
  std::uint32_t bursts : 4 = 0;       // short distances since the last long one, saturating
  std::uint32_t used : 1 = false;     // `last` is a use
  std::uint32_t ahead : 1 = false;    // arrived, not used since
  std::uint32_t awaited : 1 = false;  // used while not in HBM: its arrival belongs to that use
  std::uint32_t asked : 1 = false;    // prefetch requested, not arrived
  std::uint32_t preference : 2 = 0;

  bool resident() const { return list != kNoList; }
  // The distance to expect. A program that sweeps its pages back and forth alternates between two.
  std::uint8_t distance() const {
    if (alternates || last_distance == ReuseDistance::kUnknown) return previous_distance;
    if (previous_distance == ReuseDistance::kUnknown) return last_distance;
    return std::uint8_t((last_distance + previous_distance + 1) / 2);
  }
  void learn(std::uint8_t seen) {
    using D = ReuseDistance;
    // A difference of one is jitter: following it would split the pages of one scan into two lists.
    if (seen + 1u >= last_distance && seen <= last_distance + 1u) seen = std::uint8_t(last_distance);
    alternates = !D::alike(seen, last_distance) && D::alike(seen, previous_distance);
    previous_distance = last_distance;
    last_distance = seen;
  }
};
static_assert(sizeof(PageState) == 24);

struct Region {
  RegionShape shape;
  DeviceState* device = nullptr;
  Shelf* shelf = nullptr;
  ScanSet scans;
  std::uint32_t resident_pages = 0;
  bool scanning = false;  // in its device's prefetch plan
  std::vector<PageState> pages;
};

class RegionTable {
 public:
  Region* find(RegionId id) { return id.value < regions_.size() ? regions_[id.value].get() : nullptr; }
  // Null if the page does not exist: callers ignore events for it.
  PageState* find(PageId page) {
    Region* region = find(page.region);
    return region && page.index < region->pages.size() ? &region->pages[page.index] : nullptr;
  }
  PageState& at(PageId page) { return regions_[page.region.value]->pages[page.index]; }

  Region& add(std::unique_ptr<Region> region) {
    const std::uint32_t id = region->shape.id.value;
    if (id >= regions_.size()) regions_.resize(id + 1);
    regions_[id] = std::move(region);
    return *regions_[id];
  }
  void remove(RegionId id) {
    regions_[id.value].reset();
    while (!regions_.empty() && !regions_.back()) regions_.pop_back();
    if (regions_.empty()) regions_.shrink_to_fit();
  }
  const std::vector<std::unique_ptr<Region>>& all() const { return regions_; }

 private:
  std::vector<std::unique_ptr<Region>> regions_;  // by id; ids are dense
};

}  // namespace vmem::migration
