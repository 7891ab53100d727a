#include "migration/place/near_slots.hpp"

#include <utility>

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

NearSlots::NearSlots(Core& core, const Transfers& transfers, const Losses& losses)
    : core_(core), transfers_(transfers), losses_(losses) {
  near_.push_back({core.config.backing, core.config.in_place, core.abilities.backing});
  for (const PeerTier& lent : core.config.peer_tiers)
    near_.push_back({lent.tier, lent.in_place, tiers::Abilities(lent.tier)});
  offered_.resize(near_.size());
}

void NearSlots::assign(PageRef ref, NearSlot place) {
  Page& page = ref.page();
  page.near = place.near;
  page.slot = place.slot;
  page.slot_version = 0;
  page.store = 0;
}

void NearSlots::drop(PageRef ref) {
  Page& page = ref.page();
  of(page).tier->release(std::exchange(page.slot, kNoFrame));
  page.slot_version = 0;
  left_host_memory(ref);
  if (ref.region->read_only) std::erase_if(passing_, [&](PageRef each) { return &each.page() == &page; });
}

void NearSlots::drop_ended(PageRef ref) {
  Page& page = ref.page();
  if (page.slot != kNoFrame) of(page).tier->release(std::exchange(page.slot, kNoFrame));
  if (ref.region->read_only) std::erase_if(passing_, [&](PageRef each) { return &each.page() == &page; });
}

void NearSlots::offer_slot(PageRef ref) {
  Page& page = ref.page();
  if (page.slot == kNoFrame || page.offered || ref.region->read_only) return;
  page.offered = true;
  offered_[page.near].push_back(ref);
}

NearSlots::Released NearSlots::release_offered(std::size_t near, std::uint64_t bytes, Copies which) {
  Released released;
  std::deque<PageRef>& offered = offered_[near];
  for (std::size_t left = offered.size(); left > 0 && released.bytes < bytes; --left) {
    const PageRef ref = offered.front();
    offered.pop_front();
    if (!still_offered(ref)) continue;
    Page& page = ref.page();
    if (page.near != near) {  // moved to another near memory since
      offered_[page.near].push_back(ref);
      continue;
    }
    const bool advised = page.read_mostly && ref.live();
    const bool suits = (!advised || which == Copies::of_read_mostly_too) && !losses_.is_unread(ref) &&
                       (which != Copies::of_this_size || ref.bytes() == bytes);
    const bool busy = page.cpu_users != 0 || transfers_.running(page.wait) || transfers_.running(page.store) ||
                      transfers_.busy_below(page);
    if (!suits || busy) {
      if (suits) released.more = Attempt::after_transfer;
      offered.push_back(ref);
      continue;
    }
    page.offered = false;
    drop(ref);
    released.bytes += ref.bytes();
  }
  return released;
}

// Entries of an ending region count. Its pages hold both a frame and a slot until their last use,
// but commitments count one place, so the slot must be releasable.
bool NearSlots::still_offered(PageRef ref) {
  Page& page = ref.page();
  // A page that is being compared with its slot is unmapped, but still owns its frame.
  const bool in_frame = page.owns_frame();
  if (page.offered && page.slot != kNoFrame && in_frame) return true;
  page.offered = false;
  return false;
}

void NearSlots::return_passing_slot(PageRef ref) {
  const Page& page = ref.page();
  const bool served = ref.region->read_only && page.slot != kNoFrame && page.mapped == Mapped::frame;
  if (served && page.cpu_users == 0 && !transfers_.running(page.wait) && !transfers_.busy_below(page)) drop(ref);
}

std::uint64_t NearSlots::passing_bytes(Passing which) const {
  std::uint64_t bytes = 0;
  for (const PageRef ref : passing_)
    bytes += which == Passing::waiting && ref.page().mapped == Mapped::slot ? 0 : ref.bytes();
  return bytes;
}

void NearSlots::came_to_host_memory(PageRef ref) {
  if (!core_.config.spill_policy || ref.page().near != 0 || ref.region->read_only) return;
  core_.config.spill_policy->page_arrived(ref.id(), Cause::use);
}

void NearSlots::left_host_memory(PageRef ref) {
  if (core_.config.spill_policy && !ref.region->read_only) core_.config.spill_policy->page_left(ref.id());
}

void NearSlots::forget(const Region& region) {
  const auto of_region = [&](const PageRef& ref) { return ref.region == &region; };
  for (auto& offered : offered_) std::erase_if(offered, of_region);
  std::erase_if(passing_, of_region);
}

}  // namespace vmem::migration
