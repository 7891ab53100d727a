#include "migration/page/residency.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace vmem::migration {

using pagetable::Access;
using pagetable::RegionState;

namespace {

bool resident(const Region& region) {
  return region.unreadable.load(std::memory_order_seq_cst) == 0 &&
         region.attention.load(std::memory_order_seq_cst) == 0;
}

}  // namespace

// A launch publishes its hold of everything before it reads all_resident. The mover clears
// all_resident before it reads the holds (holds.hpp), so at least one sees the other.
void Residency::publish(PageRef ref, PageState next) {
  const Page& page = ref.page();
  const bool in_place = page.mapped == pagetable::Mapped::slot;
  const bool wants_frame = in_place && !page.in_place && next.allows(Access::read);
  next = next.clear(PageState::kInPlace | PageState::kWantsFrame)
             .set((in_place ? PageState::kInPlace : 0) | (wants_frame ? PageState::kWantsFrame : 0));
  if (!next.allows(Access::read) || next.has(PageState::kAttention)) not_resident(*ref.region);
  publish_state(*ref.region, ref.page(), next);
}

void Residency::begin_tracking() {
  all_resident_.store(0, std::memory_order_seq_cst);
  tracks_.store(true, std::memory_order_seq_cst);
}

void Residency::make_room_for_region() {
  // Grows by a factor, like push_back.
  for (std::vector<Region*>* const each : {&live_, &away_}) {
    if (each->size() == each->capacity()) each->reserve(std::max<std::size_t>(2 * each->size(), 16));
  }
}

// REQUIRES: make_room_for_region.
void Residency::region_begins(Region& region) {
  live_.push_back(&region);
  region.away = false;
  count_openings(region.mapping_devices, 1);
  declared_regions_ += region.undeclared || region.slab ? 0 : 1;
  not_resident(region);
  core_.record([&](trace::Recorder& to) {
    if (region.shares()) return to.shared_region_begins(region.first.index, region.granules);
    to.region_begins({.region = region.id.value,
                      .bytes = region.bytes,
                      .granule = region.first.index,
                      .granules = region.granules,
                      .device = std::uint32_t(region.device),
                      .kind = region.slab         ? trace::BlockKind::slab
                              : region.undeclared ? trace::BlockKind::undeclared
                              : region.read_only  ? trace::BlockKind::file
                                                  : trace::BlockKind::declared},
                     core_.now_ns());
  });
}

void Residency::region_ends(const Region& region) {
  core_.record([&](trace::Recorder& to) { to.region_ends(region.id.value, core_.now_ns()); });
  std::erase(live_, &region);
  count_openings(region.mapping_devices, -1);
  declared_regions_ -= region.undeclared || region.slab ? 0 : 1;
}

void Residency::region_extended(Region& region, std::uint32_t pages) {
  not_resident(region);
  region.extent.begun_pages.fetch_add(pages);
  region.unwritable.fetch_add(pages);
  region.unreadable.fetch_add(pages);
}

void Residency::count_openings(std::uint32_t devices, int by) {
  for (std::size_t i = 0; i < core_.config.devices.size(); ++i) openings_[i] += (devices >> i & 1) * std::uint32_t(by);
}

void Residency::not_resident(Region& region) {
  if (tracks()) return;
  all_resident_.store(0, std::memory_order_seq_cst);
  if (!std::exchange(region.away, true)) away_.push_back(&region);
}

void Residency::find_all_resident() {
  if (tracks()) return;
  std::erase_if(away_, [](Region* region) {
    if (region->state.load(std::memory_order_relaxed) == RegionState::live && !resident(*region)) return false;
    region->away = false;
    return true;
  });
  std::uint32_t all = 0;
  const bool possible = away_.empty() && declared_regions_ == 0 && !core_.lost;
  for (std::size_t i = 0; i < core_.config.devices.size() && possible; ++i)
    all |= openings_[i] == live_.size() ? 1u << i : 0;
  if (all_resident_.load(std::memory_order_relaxed) != all) all_resident_.store(all, std::memory_order_seq_cst);
}

}  // namespace vmem::migration
