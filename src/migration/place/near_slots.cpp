#include "migration/place/near_slots.hpp"

#include <algorithm>
#include <utility>

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

// Whether the next page of this size finds a slot at once. If one has to be made, that begins now:
// it takes longer than the page's way here.
bool has_another_slot(tiers::Tier& host, std::uint64_t page_bytes) {
  const tiers::TierUsage usage = host.usage();
  if (usage.ready_bytes >= page_bytes || usage.used_bytes + page_bytes > usage.budget_bytes) return true;
  const auto another = host.allocate(page_bytes);
  const bool granted = another && another->grant == tiers::Grant::granted;
  if (granted) host.release(another->slot);
  return granted;
}

}  // namespace

NearSlots::NearSlots(Core& core, const Transfers& transfers, const Losses& losses)
    : core_(core), transfers_(transfers), losses_(losses), copies_(core.config.published_cache_bytes) {
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
  if (ref.region->read_only) forget_passing(ref);
}

void NearSlots::drop_ended(PageRef ref) {
  Page& page = ref.page();
  if (page.slot != kNoFrame) of(page).tier->release(std::exchange(page.slot, kNoFrame));
  if (ref.region->read_only) forget_passing(ref);
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

void NearSlots::pass_through(PageRef ref) {
  if (keeps_copies_of(*ref.region)) copies_.begins(ref.id(), ref.bytes());
  passing_.push_back(ref);
}

void NearSlots::forget_passing(PageRef ref) {
  if (copies_.is_used(ref.id())) return copies_.ends(ref.id());
  copies_.ends(ref.id());
  std::erase_if(passing_, [&](PageRef each) { return &each.page() == &ref.page(); });
}

void NearSlots::passed_through(PageRef ref) {
  const Page& page = ref.page();
  const bool at_host = ref.region->read_only && page.slot != kNoFrame;
  if (!at_host || page.cpu_users != 0 || transfers_.running(page.wait) || transfers_.busy_below(page)) return;
  const bool copied = keeps_copies_of(*ref.region);
  if (copied && ref.bytes() > copies_.quota_bytes() && page.mapped != Mapped::slot) return drop(ref);
  // Until HBM evicts, a copy of what it has serves nobody. At the quota others make room.
  const auto worth_keeping = [&] {
    return copied && core_.counters.evictions != 0 &&
           (copies_.excess(ref.bytes()) != 0 || has_another_slot(*core_.config.backing, ref.bytes()));
  };
  if (page.mapped == Mapped::frame && !worth_keeping()) return drop(ref);
  copy_used(ref);
}

void NearSlots::copy_used(PageRef ref) {
  if (!ref.region->read_only || !copies_.has(ref.id())) return;
  if (!copies_.is_used(ref.id())) std::erase_if(passing_, [&](PageRef each) { return &each.page() == &ref.page(); });
  copies_.used(ref.id());
}

bool NearSlots::comes_free(PageRef ref) const {
  return ref.live() && ref.page().mapped != Mapped::slot && ref.page().cpu_users == 0;
}

std::uint64_t NearSlots::soon_free_bytes(std::uint64_t most) const {
  std::uint64_t bytes = 0;
  for (auto each = passing_.begin(); each != passing_.end() && bytes < most; ++each)
    bytes += comes_free(*each) ? each->bytes() : 0;
  const std::list<PageId>& copies = copies_.candidates();
  for (auto each = copies.begin(); each != copies.end() && bytes < most; ++each) {
    const PageRef ref{core_.config.space->find(each->region), each->index};
    bytes += comes_free(ref) ? ref.bytes() : 0;
  }
  return std::min(bytes, most);
}

std::uint64_t NearSlots::passing_bytes(Passing which) const {
  std::uint64_t bytes = which == Passing::all ? copies_.candidate_bytes() : 0;
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
  published_.erase(&region);
}

}  // namespace vmem::migration
