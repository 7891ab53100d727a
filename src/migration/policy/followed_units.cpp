#include "migration/policy/followed_units.hpp"

#include <utility>

namespace vmem::migration {

void FollowedUnits::add(const RegionShape& shape) {
  const std::uint32_t units = shape.shared ? shape.pages : 1, pages = shape.shared ? 1 : shape.pages;
  if (units_.empty()) units_.emplace_back();
  while (free_units_.size() < units) {
    if (free_units_.capacity() < units_.size()) free_units_.reserve(2 * units_.size());
    units_.emplace_back();
    free_units_.push_back({std::uint32_t(units_.size() - 1)});
  }
  Region region{shape, {free_units_.end() - std::ptrdiff_t(units), free_units_.end()}};
  for (const UnitId id : region.units) {
    units_[id.value].resident.assign(pages, false);
    units_[id.value].in_place.assign(pages, false);
  }
  const Region& followed = regions_.insert_or_assign(shape.id.value, std::move(region)).first->second;
  free_units_.resize(free_units_.size() - units);
  std::uint32_t first = 0;
  for (const UnitId id : followed.units) {
    Followed& unit = units_[id.value];
    unit = {.id = id,
            .region = shape.id,
            .first = first,
            .pages = pages,
            .page_bytes = shape.page_bytes,
            .device = shape.device,
            .resident = std::move(unit.resident),
            .in_place = std::move(unit.in_place)};
    first += pages;
  }
}

const RegionShape* FollowedUnits::region(RegionId region) const {
  const auto found = regions_.find(region.value);
  return found == regions_.end() ? nullptr : &found->second.shape;
}

Followed* FollowedUnits::find(PageId page) {
  const auto found = regions_.find(page.region.value);
  if (found == regions_.end() || page.index >= found->second.shape.pages) return nullptr;
  const Region& region = found->second;
  return find(region.units[region.shape.shared ? page.index : 0]);
}

}  // namespace vmem::migration
