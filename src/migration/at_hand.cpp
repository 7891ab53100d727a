// As long as all fits: what is allocated is mapped in HBM at once, and launches are told that they need not look at what they name.
#include <algorithm>
#include <utility>

#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::RegionState;

namespace {

constexpr std::uint32_t kMapsPerStep = 64;  // misses wait meanwhile

bool at_hand(const Region& region) {
  return region.unreadable.load(std::memory_order_seq_cst) == 0 &&
         region.attention.load(std::memory_order_seq_cst) == 0;
}

}  // namespace

// Launches that find everything at hand hold everything first, as the mover withdraws this before it looks at the holds (holds.hpp).
void Mover::publish(PageRef ref, PageState next) {
  if (!next.allows(Access::read) || next.has(PageState::kAttention)) not_at_hand(*ref.region);
  publish_state(*ref.region, ref.page(), next);
}

// So that region_begins allocates nothing. Vectors grow by a factor, as push_back's.
void Mover::make_room_for_region() {
  for (std::vector<Region*>* const each : {&live_, &away_}) {
    if (each->size() == each->capacity()) each->reserve(std::max<std::size_t>(2 * each->size(), 16));
  }
}

// REQUIRES: make_room_for_region.
void Mover::region_begins(Region& region) {
  live_.push_back(&region);
  region.away = false;
  count_openings(region.mapping_devices, 1);
  declared_regions_ += region.undeclared || region.shared ? 0 : 1;
  not_at_hand(region);
}

void Mover::region_ends(const Region& region) {
  std::erase(live_, &region);
  count_openings(region.mapping_devices, ~std::uint32_t{0});
  declared_regions_ -= region.undeclared || region.shared ? 0 : 1;
}

void Mover::count_openings(std::uint32_t devices, std::uint32_t by) {
  for (std::size_t i = 0; i < devices_.size(); ++i) openings_[i] += (devices >> i & 1) * by;
}

void Mover::not_at_hand(Region& region) {
  if (tracks()) return;
  all_at_hand_.store(0, std::memory_order_seq_cst);
  if (!std::exchange(region.away, true)) away_.push_back(&region);
}

// At the end of a step: before the next one no region takes the place of another that ended.
void Mover::find_all_at_hand() {
  if (tracks()) return;
  std::erase_if(away_, [](Region* region) {
    if (region->state.load(std::memory_order_relaxed) == RegionState::live && !at_hand(*region)) return false;
    region->away = false;
    return true;
  });
  std::uint32_t all = 0;
  for (std::size_t i = 0; i < devices_.size() && away_.empty() && declared_regions_ == 0 && !lost_; ++i)
    all |= openings_[i] == live_.size() ? 1u << i : 0;
  if (all_at_hand_.load(std::memory_order_relaxed) != all) all_at_hand_.store(all, std::memory_order_seq_cst);
}

// Of a program that says nothing, and only what keeps HBM so far from full that nobody tracks uses.
bool Mover::worth_mapping(const Region& region) const {
  const tiers::FramePool& hbm = devices_[std::size_t(region.device)]->hbm;
  const std::uint64_t untracked = hbm.budget_bytes() - hbm.budget_bytes() / 8;
  const std::uint64_t bytes = region.page_count * region.page_bytes();
  return (region.undeclared || region.shared) && !tracks() && hbm.used_bytes() + bytes <= untracked;
}

// A new region's pages from `mapped` on; true: no more of them are to be. Others may have come to it between two steps, by an address that
// they remember. What fails here fails again for the launch that needs the page, and is reported there.
bool Mover::map_some(Region& region, std::uint32_t& mapped) {
  worked_ = true;
  for (std::uint32_t left = kMapsPerStep; left > 0; --left) {
    if (mapped == region.page_count || tracks()) return true;
    const PageRef ref{&region, mapped++};
    const Page& page = ref.page();
    if (page.mapped != pagetable::Mapped::nothing || page.frame != pagetable::kNoFrame || page.version != 0) continue;
    const auto frame = take_frame(device_of(region), ref.bytes());
    if (!frame || !*frame) return true;
    const auto loaded = load_frame(ref, **frame, Access::read, false, false);
    if (loaded) continue;
    if (loaded.error().status == VMEM_ERROR_DEVICE_LOST) lose_device(loaded.error());
    return true;
  }
  return false;
}

}  // namespace vmem::migration
