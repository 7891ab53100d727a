// Between host memory and the tier below it. A page that leaves HBM has a slot of host memory; when slots run short, pages are spilled:
// written to the tier below, and their slots given to others. Before anything else can be done with such a page it is recalled: read
// back into a slot. The GPU's copies and the disk's never touch a slot at the same time, unless both only read it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/log.hpp"
#include "base/options.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;
using tiers::Direction;

namespace {

// Slots that are kept free, so that a page that leaves HBM does not wait for a disk: as many pages, and at most a share of the budget.
constexpr std::uint64_t kReservePages = 4;
constexpr std::uint64_t kReserveShare = 8;
constexpr std::uint64_t kFullForUs = 100'000;   // before a tier that was full is asked again
constexpr std::uint64_t kFirstPauseUs = 1'000;  // after a failed store, doubled by each one in a row, up to kFullForUs
constexpr std::uint64_t kFailingForUs = 5'000'000;  // without a success: then the tier takes no more pages
constexpr std::size_t kCandidates = 8;              // asked for at a time
constexpr std::uint32_t kLoadTries = 4;             // of a page from below, before a call fails
constexpr std::uint64_t kLoadPauseUs = 1'000;       // before the second one; four times as long before each next one

}  // namespace

// ---- up ----

// True: the page's slot has its bytes, or there are none below. False: they are on their way, or will be.
Result<bool> Mover::recall(PageRef ref, Displaces displaces) {
  Page& page = ref.page();
  if (page.spilled == nullptr || page.slot_current()) return true;
  if (!page.spilled_current()) {
    return fail(VMEM_ERROR_INTERNAL,
                fmt::format("no copy of version {} of the page at {:#x}", page.version, address_of(ref)));
  }
  if (spilling(page) || running(page.store) || !recall_has_room(ref)) return false;
  VMEM_ASSIGN(const bool due, load_due(ref));
  if (!due) return false;
  page.spilled->wanted = true;
  VMEM_ASSIGN(const bool granted, need_host_slot(ref, displaces));
  // To find the slot, uses may have been read, and that the region died.
  if (granted && page.spilled_current()) VMEM_TRY(submit_spill(ref, Direction::load));
  return false;
}

// True if the page may be loaded now: no load failed, or the pause after the last failure is over.
// Error: all tries failed; the next call begins anew.
Result<bool> Mover::load_due(PageRef ref) {
  const auto failed = load_failures_.find(ref.id());
  if (failed == load_failures_.end()) return true;
  if (failed->second.version != ref.page().version) {
    load_failures_.erase(failed);
    return true;
  }
  if (failed->second.tries < kLoadTries) return config_.now_us() >= failed->second.again_at_us;
  Error error = std::move(failed->second.error);
  load_failures_.erase(failed);
  error.message =
      fmt::format("the page at {:#x} ({}) could not be read, and {} keeps it for another try: {}", address_of(ref),
                  format_bytes(ref.bytes()), below_of(*ref.region).info().name, error.message);
  return std::unexpected(std::move(error));
}

// The page stays below. An answer that did not come in time is not waited for again in the same call.
void Mover::load_from_below_failed(PageRef ref, const Error& error) {
  LoadFailure& failure = load_failures_[ref.id()];
  if (failure.version != ref.page().version) failure = {.error = {}, .version = ref.page().version};
  failure.tries = error.status == VMEM_ERROR_TIMEOUT ? kLoadTries : failure.tries + 1;
  failure.again_at_us = config_.now_us() + (kLoadPauseUs << 2 * std::min(failure.tries - 1, kLoadTries));
  failure.error = error;
  if (!std::has_single_bit(++counters_.load_failures)) return;
  VMEM_LOG_WARN("the page at {:#x} could not be read from {}, which keeps it: {} ({} such failures)", address_of(ref),
                below_of(*ref.region).info().name, error.message, counters_.load_failures);
}

// False: no more can be started now.
bool Mover::recall_ahead(PageRef ref) {
  Page& page = ref.page();
  const bool lost = PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost);
  const bool below = page.mapped == Mapped::nothing && page.frame == kNoFrame && !page.slot_current() &&
                     page.spilled_current() && !lost && !outlived(ref);
  if (!below || spilling(page)) return true;
  if (!recall_has_room(ref)) return false;
  if (arrives(ref)) {
    const auto arrival = arrive(ref, true, search_for(ref, Search::first_choices));
    if (!arrival || *arrival == Arrival::on_its_way) return arrival.has_value();
    if (*arrival != Arrival::no_frame) return false;
  }
  if (ref.region->read_only && !room_to_borrow(ref.bytes())) return false;
  // What fails here fails again when the page is wanted, and is reported then.
  const auto recalled = recall(ref, Displaces::unwanted);
  return recalled && spilling(page);
}

// True if a slot of host memory is being read into: it can be given up when that has ended.
bool Mover::recalling_to_host() const {
  return std::ranges::any_of(in_flight_, [](const auto& each) {
    return each.second.kind == InFlight::Kind::spill && each.second.direction == Direction::load;
  });
}

// ---- down ----

// True: slots were given up. False: they will be. Error: nothing in host memory can go.
Result<bool> Mover::make_slot_room(std::uint64_t bytes, Displaces displaces) {
  Spilled spilled = spill_some(bytes, false);
  // What was read back for a use to come, or is used in place, goes only if there is nothing else.
  if (displaces != Displaces::unwanted && spilled.bytes == 0 && !spilled.busy) spilled = spill_some(bytes, true);
  if (spilled.bytes != 0) return true;
  slots_in_use_ = !spilled.busy && spilled.in_use;
  if (spilled.busy || spilled.in_use) return false;
  return std::unexpected(full_error("a page in host memory", bytes));
}

Mover::Spilled Mover::spill_some(std::uint64_t bytes, bool any) {
  Spilled sum;
  VictimQuery query;
  query.page_bytes = query.bytes_wanted = bytes;
  std::array<PageId, kCandidates> candidates;
  for (std::size_t offered = kCandidates; offered == kCandidates; query.again = true) {
    offered = config_.spill_policy->victims(query, candidates);
    for (const PageId candidate : std::span(candidates).first(offered)) {
      const PageRef ref{config_.space->find(candidate.region), candidate.index};
      if (!ref.live()) continue;
      const bool wanted = ref.page().spilled != nullptr && ref.page().spilled->wanted;
      if (!any && (wanted || ref.page().mapped == Mapped::slot)) continue;
      const Spilled one = spill_one(ref);
      sum.bytes += one.bytes;
      sum.busy = sum.busy || one.busy;
      sum.in_use = sum.in_use || one.in_use;
      if (sum.bytes >= bytes || !room_in_flight(*config_.spill, spilling_bytes_, bytes)) return sum;
    }
  }
  return sum;
}

// Nobody uses its slot.
bool Mover::slot_at_rest(PageRef ref) const {
  const Page& page = ref.page();
  const bool unseen = page.mapped == Mapped::nothing && (page.frame == kNoFrame || page.standby);
  return unseen && page.slot_current() && page.cpu_users == 0 && !running(page.store) && !running(page.wait) &&
         !spilling(page);
}

bool Mover::spillable(PageRef ref) const { return ref.page().version != 0 && slot_at_rest(ref); }

Mover::Spilled Mover::spill_one(PageRef ref) {
  Page& page = ref.page();
  if (&page == serving_) return {};
  if (page.mapped == Mapped::slot && !page.pinned) {
    const auto hidden = hide(ref);
    if (!hidden) eviction_failed(ref, hidden.error());
    if (!hidden || *hidden != Evicted::done) return {.in_use = hidden && *hidden == Evicted::busy};
  }
  // Used in place before anything was written: there is nothing to keep.
  if (page.version == 0 && slot_at_rest(ref)) {
    drop_slot(ref);
    return {ref.bytes(), false};
  }
  if (!spillable(ref)) return {0, running(page.store) || running(page.wait) || spilling(page)};
  if (outlived(ref)) {
    forget_contents(ref);
    return {ref.bytes(), false};
  }
  // What is below may have gone with another node: then it is written there once more, while its bytes are here.
  const bool kept = page.spilled_current() && config_.spill->kept(page.spilled->slot);
  if (kept && !page.spilled->doubtful) {
    drop_slot(ref);
    counters_.spills_dropped_bytes += ref.bytes();
    return {ref.bytes(), false};
  }
  if (config_.now_us() < spill_full_until_us_) return {0, failing_for_short()};
  const bool probing =
      spill_failing_.in_a_row != 0 && spilling_bytes_ != 0;  // one store tells whether others would fail
  if (probing || !room_in_flight(*config_.spill, spilling_bytes_, ref.bytes())) return {0, true};
  const auto granted = need_spill_slot(ref);
  spill_away_until_us_ = 0;
  if (!granted && granted.error().status == VMEM_ERROR_TIMEOUT) {
    spill_error_ = granted.error().message;
    spill_full_until_us_ = config_.now_us() + kFirstPauseUs;
    spill_away_until_us_ = config_.now_us() + kFullForUs;
    return {};
  }
  if (granted && !*granted) return {0, true};
  const auto submitted = granted ? submit_spill(ref, Direction::store) : Status(std::unexpected(granted.error()));
  if (submitted) return {0, true};
  // There is no room, or nothing below in service.
  if (!granted) spill_refused(ref, submitted.error());
  if (granted) spill_failed(ref, submitted.error());
  return {};
}

// Stores have failed in a row, and another one may succeed: who needs room waits for it.
bool Mover::failing_for_short() const {
  return spill_failing_.in_a_row != 0 && config_.now_us() - spill_failing_.since_us < kFailingForUs;
}

// True if a call that found no room anywhere waits for a node that is away.
bool Mover::may_find_room_later(const Error& error) const {
  return error.status == VMEM_ERROR_OUT_OF_MEMORY && config_.now_us() < spill_away_until_us_;
}

// Before slots are wanted, while nobody waits for a disk.
void Mover::spill_ahead() {
  if (config_.now_us() < spill_full_until_us_) return;
  const tiers::TierUsage host = config_.backing->usage();
  std::uint64_t largest = 0;
  for (const auto& [page_bytes, pages] : page_counts_) largest = std::max(largest, page_bytes);
  const std::uint64_t reserve = std::min(kReservePages * largest, host.budget_bytes / kReserveShare);
  std::uint64_t free_bytes = host.budget_bytes - std::min(host.budget_bytes, host.used_bytes);
  // The slots of pages in HBM are as good as free.
  for (auto each = retained_[0].begin(); each != retained_[0].end() && free_bytes < reserve; ++each) {
    if (still_retained(*each) && each->page().near == 0) free_bytes += each->bytes();
  }
  if (free_bytes < reserve) (void)spill_some(reserve - free_bytes, false);
}

// What can be spilled: pages in host memory and not in HBM.
void Mover::came_to_host_memory(PageRef ref) {
  if (!config_.spill_policy || ref.page().near != 0 || ref.region->read_only) return;
  config_.spill_policy->page_arrived(ref.id(), false);
}

void Mover::left_host_memory(PageRef ref) {
  if (config_.spill_policy && !ref.region->read_only) config_.spill_policy->page_left(ref.id());
}

// ---- the tier below ----

Result<bool> Mover::need_spill_slot(PageRef ref) {
  Page& page = ref.page();
  if (page.spilled == nullptr) page.spilled = std::make_unique<pagetable::SpilledCopy>();
  pagetable::SpilledCopy& copy = *page.spilled;
  if (copy.slot != kNoFrame) return true;
  auto asked = config_.spill->allocate(ref.bytes());
  const bool no_room = asked ? asked->grant == tiers::Grant::full : asked.error().status == VMEM_ERROR_TIMEOUT;
  if (no_room && give_up_spilled(ref.bytes()) != 0) asked = config_.spill->allocate(ref.bytes());
  VMEM_ASSIGN(const tiers::SlotGrant grant, std::move(asked));
  if (grant.grant == tiers::Grant::later) return false;
  if (grant.grant == tiers::Grant::full) {
    // Without the tiers' figures: full_error quotes this with them.
    return fail(VMEM_ERROR_OUT_OF_MEMORY,
                fmt::format("{} has no room for {} (it has {}, of which {} are in use)", config_.spill->info().name,
                            format_bytes(ref.bytes()), format_bytes(config_.spill->usage().budget_bytes),
                            format_bytes(config_.spill->usage().used_bytes)));
  }
  copy.slot = grant.slot;
  copy.version = 0;
  if (!std::exchange(copy.listed, true)) spilled_.push_back(ref);
  return true;
}

// Copies below of pages that have their bytes elsewhere, too.
std::uint64_t Mover::give_up_spilled(std::uint64_t bytes) {
  std::uint64_t given = 0;
  for (std::size_t left = spilled_.size(); left > 0 && given < bytes; --left) {
    const PageRef ref = spilled_.front();
    spilled_.pop_front();
    if (!ref.live() || ref.page().spilled == nullptr) continue;
    Page& page = ref.page();
    page.spilled->listed = page.spilled->slot != kNoFrame;
    if (!page.spilled->listed) continue;
    const bool elsewhere = !page.spilled_current() || page.slot_current() || (page.frame != kNoFrame && !page.standby);
    if (!elsewhere || spilling(page)) {
      spilled_.push_back(ref);
      continue;
    }
    page.spilled->listed = false;
    drop_spilled(ref);
    given += ref.bytes();
  }
  return given;
}

// REQUIRES: both slots; no transfer of either.
Status Mover::submit_spill(PageRef ref, Direction direction) {
  Page& page = ref.page();
  const bool down = direction == Direction::store;
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.slot = page.spilled->slot;
  transfer.host = config_.in_place->host_address(page.slot, down ? Access::read : Access::write);
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = direction;
  transfer.kind = ref.region->id.value;
  transfer.if_changed = down && page.spilled_current();
  Transfers::Room room = Transfers::reserve({.region = ref.region,
                                             .page = ref.index,
                                             .bytes = ref.bytes(),
                                             .direction = direction,
                                             .kind = InFlight::Kind::spill,
                                             .version = page.version,
                                             .since_us = config_.now_us()});
  VMEM_TRY(below_of(*ref.region).submit({&transfer, 1}));
  in_flight_.enter(std::move(room), transfer);
  page.spilled->transfer = transfer.id;
  if (down) page.spilled->doubtful = false;
  (down ? spilling_bytes_ : recalling_bytes_) += ref.bytes();
  note(ref, down ? Happened::spilled : Happened::recalled);
  worked_ = true;
  return {};
}

void Mover::finish_spill(PageRef ref, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  const bool down = transfer.direction == Direction::store;
  const bool done = completion.outcome == tiers::Outcome::done;
  (down ? spilling_bytes_ : recalling_bytes_) -= transfer.bytes;
  page.spilled->transfer = 0;
  if (down) {
    if (done && (!transfer.if_changed || completion.changed)) page.spilled->known = false;
    if (done) {
      spill_failing_ = {};
      spill_error_.clear();
      page.spilled->version = transfer.version;
      page.spilled->through_host = false;
    }
    if (done && transfer.if_changed && !completion.changed) {
      counters_.spills_dropped_bytes += transfer.bytes;
    } else if (done) {
      counters_.spilled_bytes += transfer.bytes;
    }
    if (!done) spill_failed(ref, completion.error);
  } else if (done) {
    (ref.region->read_only ? counters_.file_read_bytes : counters_.recalled_bytes) += transfer.bytes;
    page.slot_version = transfer.version;
    load_failures_.erase(ref.id());
    room_came_below();
    if (page.frame == kNoFrame || page.standby) came_to_host_memory(ref);
  }
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  if (!live) return;
  // Forgotten, or written anew, while it was on its way.
  if (page.version == 0) return forget_contents(ref);
  if (down) {
    if (done && !page.spilled->wanted && spillable(ref) && !page.spilled->doubtful) drop_slot(ref);
    return;
  }
  if (done || page.version != transfer.version) return;
  drop_slot(ref);
  // Only the tier's verdict loses a page: what it could not read now it may read later.
  if (completion.outcome == tiers::Outcome::lost) return lose_page(ref, completion.error);
  load_from_below_failed(ref, completion.error);
}

// No slot for the page below: nothing is asked for again at once, whatever the reason.
void Mover::spill_refused(PageRef ref, const Error& error) {
  spill_full_until_us_ = config_.now_us() + kFullForUs;
  spill_not_stored(ref, error);
}

// The next try may go to another slot, on another disk, after a pause.
void Mover::spill_failed(PageRef ref, const Error& error) {
  const std::uint64_t now_us = config_.now_us();
  if (now_us > spill_full_until_us_ + kFailingForUs) spill_failing_ = {};  // the last one was long ago
  if (spill_failing_.in_a_row++ == 0) spill_failing_.since_us = now_us;
  const std::uint64_t pause_us = kFirstPauseUs << std::min(spill_failing_.in_a_row - 1, 7u);
  drop_spilled(ref);
  // What the process lacks memory for is no sign of a tier without room.
  const bool full = error.status == VMEM_ERROR_OUT_OF_MEMORY && error.native != ENOMEM;
  spill_full_until_us_ = now_us + (full ? kFullForUs : std::min(pause_us, kFullForUs));
  if (full) spill_failing_ = {};
  spill_not_stored(ref, error);
}

// The page stays in host memory.
void Mover::spill_not_stored(PageRef ref, const Error& error) {
  spill_error_ = error.message;
  if (ref.page().spilled != nullptr) {
    ref.page().spilled->version = 0;
    ref.page().spilled->known = false;
  }
  if (!std::has_single_bit(++counters_.spill_failures)) return;
  VMEM_LOG_WARN("the page at {:#x} could not be written to {}, and stays in host memory: {} ({} such failures)",
                address_of(ref), config_.spill->info().name, error.message, counters_.spill_failures);
}

void Mover::drop_slot(PageRef ref) {
  Page& page = ref.page();
  near_of(page).tier->release(std::exchange(page.slot, kNoFrame));
  page.slot_version = 0;
  left_host_memory(ref);
  if (ref.region->read_only) std::erase_if(borrowed_, [&](PageRef each) { return &each.page() == &page; });
}

void Mover::drop_spilled(PageRef ref) {
  Page& page = ref.page();
  if (page.spilled == nullptr) return;
  page.spilled->version = 0;
  page.spilled->wanted = false;
  page.spilled->known = false;
  page.spilled->through_host = false;
  if (page.spilled->slot == kNoFrame || spilling(page) || ref.region->read_only) return;
  config_.spill->release(std::exchange(page.spilled->slot, kNoFrame));
  room_came_below();
}

// Below host memory a slot was released, or a copy became redundant: the next eviction asks a tier
// that was full again.
void Mover::room_came_below() {
  if (spill_failing_.in_a_row == 0) spill_full_until_us_ = 0;
}

void Mover::doubt_spilled(Page& page) {
  if (page.spilled != nullptr) page.spilled->doubtful = true;
}

}  // namespace vmem::migration
