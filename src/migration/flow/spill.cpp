#include "migration/flow/spill.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

#include "migration/flow/in_flight_limits.hpp"
#include "migration/place/full_error.hpp"

namespace vmem::migration {

using pagetable::Mapped;
using tiers::Direction;
using tiers::Outcome;

namespace {

// Slots kept free, so that an eviction does not wait for a disk: this many largest pages, at most a
// share of the budget.
constexpr std::uint64_t kReservePages = 4;
constexpr std::uint64_t kReserveShare = 8;
constexpr std::size_t kCandidates = 8;  // requested at a time

}  // namespace

Result<Attempt> Spill::make_room(std::uint64_t bytes, const SlotWish& wish) {
  Spilled spilled = spill_some(bytes, {Displaces::unwanted, wish.excluded});
  // Pages read back for an imminent use, or used in place, come last.
  const bool others = wish.displaces != Displaces::unwanted && spilled.more != Attempt::after_transfer;
  if (others && spilled.bytes == 0) spilled = spill_some(bytes, wish);
  if (spilled.bytes != 0) return Attempt::done;
  if (comes(spilled.more)) return spilled.more;
  return std::unexpected(
      full_error(parts_.core, parts_.devices, parts_.near, parts_.below, "a page in host memory", bytes));
}

Spill::Spilled Spill::spill_some(std::uint64_t bytes, const SlotWish& wish) {
  Spilled sum;
  VictimQuery query;
  query.page_bytes = query.bytes_wanted = bytes;
  std::array<PageId, kCandidates> candidates;
  const MoverConfig& config = parts_.core.config;
  for (std::size_t offered = kCandidates; offered == kCandidates; query.again = true) {
    offered = config.spill_policy->victims(query, candidates);
    for (const PageId candidate : std::span(candidates).first(offered)) {
      const PageRef ref{config.space->find(candidate.region), candidate.index};
      if (!ref.live()) continue;
      const bool wanted = ref.page().spilled != nullptr && ref.page().spilled->wanted;
      if (wish.displaces == Displaces::unwanted && (wanted || ref.page().mapped == Mapped::slot)) continue;
      const Spilled each = &ref.page() == wish.excluded ? Spilled{} : spill_one(ref);
      sum.bytes += each.bytes;
      // The surest way first (attempt.hpp).
      sum.more = std::min(sum.more, each.more);
      const std::uint64_t limit = most_in_flight(parts_.core, *config.spill, bytes);
      if (sum.bytes >= bytes || parts_.below.storing().total + bytes > limit) return sum;
    }
  }
  return sum;
}

// The slot holds the page's current bytes, and nothing uses it or the page.
bool Spill::slot_at_rest(PageRef ref) const {
  const Page& page = ref.page();
  const bool unseen = page.mapped == Mapped::nothing && !page.owns_frame();
  return unseen && page.slot_current() && page.cpu_users == 0 && !parts_.transfers.running(page.store) &&
         !parts_.transfers.running(page.wait) && !parts_.transfers.busy_below(page);
}

Spill::Spilled Spill::spill_one(PageRef ref) {
  Page& page = ref.page();
  if (page.mapped == Mapped::slot && !page.pinned) {
    const auto hidden = parts_.gate.hide(ref);
    if (!hidden) parts_.core.eviction_failed(ref, hidden.error());
    if (!hidden || *hidden != Attempt::done) return {0, hidden ? *hidden : Attempt::never};
  }
  // Never written, only mapped in place: there are no contents to keep.
  if (page.version == 0 && slot_at_rest(ref)) {
    parts_.near.drop(ref);
    return {ref.bytes()};
  }
  if (!spillable(ref)) {
    const bool moving = parts_.transfers.running(page.store) || parts_.transfers.running(page.wait) ||
                        parts_.transfers.busy_below(page);
    return {0, moving ? Attempt::after_transfer : Attempt::never};
  }
  if (Contents::of_earlier_life(ref)) {
    parts_.contents.forget(ref);
    return {ref.bytes()};
  }
  // The copy below may be lost with a node, or unreadable: write it again while its bytes are here.
  const bool intact = page.spilled_current() && !parts_.core.abilities.spill.degraded(page.spilled->slot);
  if (!intact || !page.spilled->verified()) return submit_store(ref);
  parts_.near.drop(ref);
  parts_.core.counters.spills_dropped_bytes += ref.bytes();
  return {ref.bytes()};
}

Spill::Spilled Spill::submit_store(PageRef ref) {
  const Core& core = parts_.core;
  Below& below = parts_.below;
  StorePacing& pacing = below.pacing();
  // After a failure requests wait for the next try, for a few seconds; then they give up.
  if (pacing.paused(core.now_us()))
    return {0, pacing.may_recover(core.now_us()) ? Attempt::after_transfer : Attempt::never};
  // One store at a time tests whether others would fail.
  const std::uint64_t limit = most_in_flight(core, *core.config.spill, ref.bytes());
  const bool probing = pacing.probes() && below.storing().total != 0;
  if (probing || below.storing().total + ref.bytes() > limit) return {0, Attempt::after_transfer};
  const auto granted = below.need_slot(ref);
  if (!granted && granted.error().status == VMEM_ERROR_TIMEOUT) {
    pacing.timed_out(core.now_us(), granted.error());
    return {};
  }
  pacing.answered();
  if (granted && *granted != Attempt::done) return {0, *granted};
  if (granted && !room_in_queue(limit, below.storing(), below.queue_of(ref), ref.bytes()))
    return {0, Attempt::after_transfer};
  const auto submitted = granted ? below.submit(ref, Direction::store) : Status(std::unexpected(granted.error()));
  if (submitted) return {0, Attempt::after_transfer};
  if (granted) {
    below.store_failed(ref, submitted.error());
  } else {  // no room, or no tier below in service
    below.store_refused(ref, submitted.error());
  }
  return {};
}

void Spill::ahead(std::uint64_t largest) {
  if (parts_.below.pacing().paused(parts_.core.now_us())) return;
  const tiers::TierUsage host = parts_.core.config.backing->usage();
  const std::uint64_t reserve = std::min(kReservePages * largest, host.budget_bytes / kReserveShare);
  std::uint64_t free_bytes = host.budget_bytes - std::min(host.budget_bytes, host.used_bytes);
  // Offered slots, and those of pages that others have as well, count as free: they can be released
  // at once. 0: host memory. Entries may be outdated.
  const auto& offered = parts_.near.offered(0);
  for (auto each = offered.begin(); each != offered.end() && free_bytes < reserve; ++each) {
    if (NearSlots::still_offered(*each) && each->page().near == 0) free_bytes += each->bytes();
  }
  if (free_bytes < reserve) free_bytes += parts_.near.soon_free_bytes(reserve - free_bytes);
  if (free_bytes < reserve) (void)spill_some(reserve - free_bytes, {Displaces::unwanted});
}

void Spill::finish(PageRef ref, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  const bool store = transfer.direction == Direction::store;
  const bool done = completion.outcome == Outcome::done;
  parts_.below.transfer_ends(transfer.direction, transfer.queue, transfer.bytes);
  page.spilled->transfer = 0;
  if (store && done) store_done(ref, transfer, completion);
  if (store && !done) parts_.below.store_failed(ref, completion.error);
  if (!store && done) {
    MoverCounters& counters = parts_.core.counters;
    (ref.region->read_only ? counters.file_read_bytes : counters.recalled_bytes) += transfer.bytes;
    page.slot_version = transfer.version;
    parts_.below.loaded(ref);
    // It is stored anew when it leaves host memory: other nodes promise nothing.
    if (page.spilled->from_source) parts_.below.drop(ref);
    parts_.below.pacing().room_came();
    if (!page.owns_frame()) parts_.near.came_to_host_memory(ref);
  }
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  if (!live) return;
  // Forgotten while the transfer was in flight. If it was written anew, too, transfer.version is 0.
  if (page.version == 0) return parts_.contents.forget(ref);
  if (store) {
    if (done && !page.spilled->wanted && spillable(ref) && page.spilled->verified()) parts_.near.drop(ref);
    return;
  }
  if (done || page.version != transfer.version) return;
  parts_.near.drop(ref);
  // Only the tier's outcome `lost` loses a page: after a failure, a later read may succeed.
  if (completion.outcome == Outcome::lost) {
    if (!parts_.below.rescue(ref, completion.error)) parts_.losses.lose(ref, completion.error);
    return;
  }
  parts_.below.load_failed(ref, completion.error);
}

void Spill::store_done(PageRef ref, const InFlight& transfer, const tiers::Completion& completion) {
  pagetable::SpilledCopy& copy = *ref.page().spilled;
  const bool unchanged = transfer.if_changed && !completion.changed;
  if (!unchanged) copy.fingerprint.reset();
  parts_.below.pacing().stored();
  copy.version = transfer.version;
  copy.route = pagetable::SpilledCopy::Route::direct;
  MoverCounters& counters = parts_.core.counters;
  (unchanged ? counters.spills_dropped_bytes : counters.spilled_bytes) += transfer.bytes;
}

}  // namespace vmem::migration
