// What a policy follows: units, by their ids and by their pages.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "migration/policy/policy.hpp"
#include "migration/policy/use_history.hpp"

namespace vmem::migration {

// What is used as a whole: the pages of an undeclared region, or one page that blocks share.
struct Followed {
  UnitId id;
  RegionId region;  // 0: the id is free
  std::uint32_t first = 0, pages = 0;
  std::uint64_t page_bytes = 0;
  int device = 0;
  bool dead = false;
  std::uint32_t resident_pages = 0;
  std::vector<bool> resident;
  std::uint32_t in_place_pages = 0;
  std::vector<bool> in_place;
  // Next use or death: the key by which the unit is listed.
  UseHistory::Position next = UseHistory::kNever;
  bool listed = false;
  bool stale = false;  // the key is to be found anew
  // The program's place when the key was last found to be old. Of a death that is overdue the key
  // stays as it was: what is about to die is worth keeping.
  UseHistory::Position stale_at = 0;
  std::uint64_t offered_in = 0;  // the last round of victims that offered all of its pages

  PageId page(std::uint32_t index) const { return {region, first + index}; }
  bool used_in_place() const { return in_place_pages == pages; }
};

class FollowedUnits {
 public:
  // std::bad_alloc: nothing of the region is followed.
  void add(const RegionShape& shape);
  // Calls `ends(unit)` with each of its units; their ids are free afterwards.
  template <class Ends>
  void remove(RegionId region, Ends&& ends);
  const RegionShape* region(RegionId region) const;  // null: not followed
  bool empty() const { return regions_.empty(); }    // no region is

  // Null: not followed.
  Followed* find(PageId page);
  Followed* find(UnitId unit) {
    Followed* const found = unit.value < units_.size() ? &units_[unit.value] : nullptr;
    return found == nullptr || found->region.value == 0 ? nullptr : found;
  }
  Followed& operator[](UnitId unit) { return units_[unit.value]; }
  // Also free ones, whose region is 0.
  std::span<Followed> all() { return units_; }
  std::span<const Followed> all() const { return units_; }

 private:
  struct Region {
    RegionShape shape;
    std::vector<UnitId> units;  // one, or with shared pages one for each
  };
  std::unordered_map<std::uint32_t, Region> regions_;
  std::vector<Followed> units_;     // by id; the first is none
  std::vector<UnitId> free_units_;  // has room for all of them
};

template <class Ends>
void FollowedUnits::remove(RegionId region, Ends&& ends) {
  const auto found = regions_.find(region.value);
  if (found == regions_.end()) return;
  for (const UnitId each : found->second.units) {
    ends(units_[each.value]);
    units_[each.value] = {};
    free_units_.push_back(each);
  }
  regions_.erase(found);
}

}  // namespace vmem::migration
