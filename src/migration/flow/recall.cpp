#include "migration/flow/recall.hpp"

#include <fmt/format.h>

#include "migration/flow/in_flight_limits.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;
using tiers::Direction;

Result<Attempt> Recall::recall(PageRef ref, Displaces displaces, Wanted wanted) {
  Page& page = ref.page();
  if (page.spilled == nullptr || page.slot_current()) return Attempt::done;
  if (!page.spilled_current()) {
    return fail(VMEM_ERROR_INTERNAL,
                fmt::format("no copy of version {} of the page at {:#x}", page.version, parts_.core.address_of(ref)));
  }
  if (parts_.transfers.busy_below(page)) {
    if (wanted == Wanted::now) parts_.below.hurry(ref);
    return Attempt::after_transfer;
  }
  if (parts_.transfers.running(page.store) || room(ref, wanted) != Room::yes) return Attempt::after_transfer;
  VMEM_ASSIGN(const bool now, parts_.below.may_load_now(ref));
  if (!now) return Attempt::after_transfer;
  page.spilled->wanted = true;
  VMEM_ASSIGN(const Attempt granted, need_host_slot(ref, displaces));
  if (granted != Attempt::done) return granted;
  // The search for a slot may have read use logs and found that the region was freed.
  if (page.spilled_current()) VMEM_TRY(parts_.below.submit(ref, Direction::load, wanted));
  return Attempt::after_transfer;
}

bool Recall::ahead(PageRef ref, Wanted wanted) {
  Page& page = ref.page();
  const bool lost = ref.state().has(PageState::kLost);
  const bool below = page.mapped == Mapped::nothing && !page.has_frame() && !page.slot_current() &&
                     page.spilled_current() && !lost && !Contents::of_earlier_life(ref);
  if (!below || parts_.transfers.busy_below(page)) return true;
  if (const Room there = room(ref, Wanted::later); there != Room::yes) return there == Room::other_queues;
  if (parts_.direct.possible(ref)) {
    const auto started = parts_.direct.start(ref, Search::first_choices);
    if (!started) return false;
    if (*started == Attempt::done) return true;
    if (*started != Attempt::never) return false;
  }
  if (ref.region->read_only && !parts_.host.room_to_pass(ref.bytes())) return false;
  // An error recurs, and is reported, when the page is needed.
  const auto recalled = recall(ref, Displaces::unwanted, wanted);
  return recalled && parts_.transfers.busy_below(page);
}

// A page that somebody waits for passes those that were read ahead; their places are no obstacle.
Recall::Room Recall::room(PageRef ref, Wanted wanted) const {
  const std::uint64_t usual = most_in_flight(parts_.core, parts_.below.of(ref), ref.bytes());
  const std::uint64_t limit = wanted == Wanted::now ? 2 * usual : usual;
  const Below::InFlightBytes& loading = parts_.below.loading();
  if (room_in_queue(limit, loading, parts_.below.queue_of(ref), ref.bytes())) return Room::yes;
  // Each other queue has room for two pages, however much is in flight.
  return loading.in(parts_.below.queue_of(ref)) < loading.total ? Room::other_queues : Room::no;
}

// REQUIRES: a slot that the page has is outdated.
Result<Attempt> Recall::need_host_slot(PageRef ref, Displaces displaces) {
  const Page& page = ref.page();
  if (page.slot != kNoFrame && page.near == 0)
    return parts_.transfers.busy_below(page) ? Attempt::after_transfer : Attempt::done;
  if (page.slot != kNoFrame) parts_.near.drop(ref);
  VMEM_ASSIGN(const HostSlot found, parts_.host.find(ref, {displaces, &page}));
  if (found.full) {
    const bool lifts = displaces == Displaces::lifting || (ref.region->read_only && displaces != Displaces::unwanted);
    if (!lifts || parts_.core.config.in_place == nullptr) return std::unexpected(*found.full);
    // Moves some page up into a free frame, which frees that page's slot.
    const Attempt lifted = parts_.lifting.lift_one(ref);
    if (lifted == Attempt::never) return std::unexpected(*found.full);
    parts_.host.note_waiting(ref, displaces);
    return lifted;
  }
  if (found.place) parts_.host.settle(ref, *found.place);
  return found.attempt;
}

void Recall::not_wanted(PageRef ref) {
  if (ref.page().spilled == nullptr) return;
  ref.page().spilled->wanted = false;
  if (ref.page().slot_current()) parts_.near.copy_used(ref);
}

}  // namespace vmem::migration
