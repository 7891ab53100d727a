// Taking pages away. The order is what makes it safe: the state word first, then the holds, then the use logs, then the streams.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "base/log.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

// Asked for at a time. The policy's first choices are what a fetch ahead may take: further down are pages wanted sooner.
constexpr std::size_t kVictims = 8;

}  // namespace

// A frame for a page of `page_bytes`: a free one, a new one within the budget, or that of a page the policy gives up. Where the
// first choices are busy, GPU progress will free one of them soon, and nothing further down is taken; where they are all held,
// the search goes on until the policy has no more to offer. Programs that do not call vmem run far ahead of the GPU, and what they
// used last is busy for long: for them it goes on past what is busy, too, as long as pages are given up gladly.
Result<Mover::Grab> Mover::grab_frame(DeviceState& device, const FrameWish& wish) {
  VMEM_ASSIGN(Grab grab, find_frame(device, wish));
  // What is being read into will be a page's, or free.
  grab.busy = grab.busy || (!grab.frame && device.arriving_bytes != 0);
  return grab;
}

Result<Mover::Grab> Mover::find_frame(DeviceState& device, const FrameWish& wish) {
  const auto [page_bytes, search, frames, victims] = wish;
  Grab grab;
  VMEM_ASSIGN(grab.frame, take_frame(device, page_bytes, frames));
  grab.busy = !grab.frame && room_in_free_frames(device, page_bytes);
  if (grab.frame || grab.busy) return grab;
  VictimQuery query;
  while (devices_[std::size_t(query.device)].get() != &device) ++query.device;
  query.page_bytes = query.bytes_wanted = page_bytes;
  std::array<PageId, kVictims> candidates;
  query.gladly = search == Search::past_busy;
  for (;;) {
    const std::size_t offered = config_.policy->victims(query, candidates);
    VMEM_ASSIGN(const bool taken, evict_one_of(device, wish, std::span(candidates).first(offered), grab));
    if (taken || search == Search::first_choices) return grab;
    if (grab.busy && !query.gladly) return grab;
    const bool all_offered = offered < candidates.size();
    if (all_offered && (grab.busy || !query.gladly)) return grab;
    query.gladly = query.gladly && !all_offered;
    query.again = true;
  }
}

// True when no more need be evicted: grab.frame is set, or copies out and comparisons that were begun will free one. grab.busy tells whether GPU
// progress will.
Result<bool> Mover::evict_one_of(DeviceState& device, const FrameWish& wish, std::span<const PageId> candidates,
                                 Grab& grab) {
  const auto [page_bytes, search, frames, victims] = wish;
  std::uint64_t leaving_bytes = 0;
  for (const PageId candidate : candidates) {
    const PageRef victim{config_.space->find(candidate.region), candidate.index};
    if (!victim.live()) continue;
    // What comes ahead of its use leaves the frames of what has come so, or neither would ever be mapped.
    if (search == Search::first_choices && arrived(victim)) continue;
    if (victims == Victims::without_slot && !leaves_without_slot(victim)) continue;
    auto evicted = evict(victim);
    if (!evicted) {
      if (evicted.error().status == VMEM_ERROR_DEVICE_LOST) return std::unexpected(evicted.error());
      eviction_failed(victim, evicted.error());
      continue;
    }
    grab.busy = grab.busy || *evicted == Evicted::busy || *evicted == Evicted::leaving;
    leaving_bytes += *evicted == Evicted::leaving ? victim.bytes() : 0;
    if (leaving_bytes >= page_bytes) return true;
    if (*evicted != Evicted::done) continue;
    VMEM_ASSIGN(grab.frame, take_frame(device, page_bytes, frames));
    if (grab.frame) return true;
    if (room_in_free_frames(device, page_bytes)) {
      grab.busy = true;
      return true;
    }
  }
  return false;
}

// True if the page can leave HBM without a new slot of host memory: it has a copy elsewhere, needs
// none, or fits into memory that another GPU lends.
bool Mover::leaves_without_slot(PageRef ref) {
  const Page& page = ref.page();
  if (page.version == 0 || page.slot != kNoFrame || outlived(ref) || comparable(ref)) return true;
  if (guarded(*ref.region) && page.spilled_current()) return true;
  return std::ranges::any_of(device_of(*ref.region).config.lenders, [&](std::uint8_t lender) {
    const tiers::TierUsage lent = near_[lender + 1u].tier->usage();
    return lent.used_bytes + ref.bytes() <= lent.budget_bytes || !retained_[lender + 1u].empty();
  });
}

void Mover::eviction_failed(PageRef ref, const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST) return lose_device(error);
  if (!std::has_single_bit(++evict_failures_)) return;
  VMEM_LOG_WARN("could not evict the page at {:#x}: {} ({} such failures)", address_of(ref), error.message,
                evict_failures_);
}

// Whether what was never created and the free frames of all sizes are enough for a page. Where take_frame found nothing all the
// same, a copy out still reads some of these frames: room is coming, and no more need be evicted.
bool Mover::room_in_free_frames(const DeviceState& device, std::uint64_t page_bytes) {
  const tiers::FramePool& hbm = device.hbm;
  const std::uint64_t uncreated = hbm.budget_bytes() - std::min(hbm.budget_bytes(), hbm.created_bytes());
  return hbm.free_bytes() != 0 && uncreated + hbm.free_bytes() >= page_bytes;
}

Result<std::optional<std::uint32_t>> Mover::take_frame(DeviceState& device, std::uint64_t page_bytes, Frames frames) {
  const auto take = [&] {
    return frames == Frames::any
               ? device.hbm.take(page_bytes)
               : device.hbm.take_idle(page_bytes, [this](std::uint64_t transfer) { return running(transfer); });
  };
  VMEM_ASSIGN(std::optional<std::uint32_t> taken, take());
  if (!taken && room_in_free_frames(device, page_bytes)) {
    VMEM_ASSIGN(const bool room, device.hbm.make_room(
                                     page_bytes, [this](std::uint64_t transfer) { return running(transfer); },
                                     [](void* owner) {
                                       auto* page = static_cast<Page*>(owner);
                                       page->standby = false;
                                       page->frame = kNoFrame;
                                     }));
    if (room) {
      VMEM_ASSIGN(taken, take());
    }
  }
  if (!taken) return taken;
  // Policies are to know a little when the first page has to leave.
  if (device.hbm.used_bytes() > device.hbm.budget_bytes() - device.hbm.budget_bytes() / 8) start_tracking();
  if (auto* owner = static_cast<Page*>(device.hbm.frame(*taken).last_owner)) {
    owner->standby = false;
    owner->frame = kNoFrame;
  }
  return taken;
}

Result<Mover::Evicted> Mover::evict(PageRef ref) {
  Page& page = ref.page();
  if (page.frame == kNoFrame || page.standby) return Evicted::done;
  start_tracking();
  if (is_unread(ref)) {
    VMEM_ASSIGN(const bool taken, take_back_unread(ref, 0));
    return taken ? Evicted::done : Evicted::busy;
  }
  if (page.pinned || page.kept || page.cpu_users != 0) return Evicted::held;
  if (comparing(page)) return page.mapped == Mapped::nothing ? Evicted::leaving : Evicted::busy;
  if (const Evicted why = held(ref, 0); why != Evicted::done) return why;
  const bool worthless = outlived(ref);
  if (running(page.wait) || spilling(page) || !uses_complete(*ref.region, page)) return Evicted::busy;
  // What was protected all the time is as the copy below has it, and needs none in between.
  const bool kept_below = guarded(*ref.region) && page.spilled_current();
  const bool compared = !worthless && !kept_below && comparable(ref);
  if (!worthless && page.version != 0 && !page.slot_current() && !kept_below && !compared) {
    auto granted = need_slot(ref);
    // With every slot taken by a page's only copy, this page stays where it is.
    if (!granted && granted.error().status == VMEM_ERROR_OUT_OF_MEMORY) return Evicted::held;
    if (!granted) return std::unexpected(granted.error());
    if (!*granted) return Evicted::busy;
  }
  if (page.mapped == Mapped::frame) {
    const PageState before(page.state.load(std::memory_order_relaxed));
    if (const Evicted why = withdraw_access(ref); why != Evicted::done) {
      retain(ref);  // a slot that it was given for this can be taken back
      return why;
    }
    // Used again meanwhile: then it needs a place for its bytes first.
    const bool revived = worthless && !outlived(ref);
    auto unmapped = revived ? Status{} : unmap_at(ref);
    if (revived || !unmapped) publish(ref, before);
    if (revived) return Evicted::busy;
    if (!unmapped) return std::unexpected(unmapped.error());
    page.mapped = Mapped::nothing;
  }
  if (worthless) forget_contents(ref);
  if (compared) {
    VMEM_TRY(submit_compare(ref));
    return Evicted::leaving;
  }
  VMEM_TRY(give_up_frame(ref));
  return Evicted::done;
}

// The page is unmapped: its bytes go to the backing copy if that is not current, or if somebody wrote who had said to read; its
// frame goes to the free list, where it stays the page's until it is reused. Transfers into the frame wait for this one.
Status Mover::give_up_frame(PageRef ref) {
  Page& page = ref.page();
  // A frame taken back from standby may still be read by the copy out that it went there with.
  std::uint64_t store = running(page.store) ? page.store : 0;
  const bool guarded_page = guarded(*ref.region);
  const bool clean = page.version == 0 || page.slot_current() || (guarded_page && page.spilled_current());
  if (!clean || (page.version != 0 && !guarded_page)) {
    VMEM_ASSIGN(store, submit(ref, tiers::Direction::store, page.frame, 0, clean));
    page.store = store;
    page.slot_version = page.version;
    // Unless it is told otherwise of a page that nobody wrote to.
    if (!in_flight_.at(store).if_changed) doubt_spilled(page);
  } else {
    counters_.dropped_bytes += ref.bytes();
  }
  frame_given_up(ref, store);
  return {};
}

void Mover::frame_given_up(PageRef ref, std::uint64_t store) {
  Page& page = ref.page();
  device_of(*ref.region).hbm.give_back(page.frame, store, &page);
  page.standby = true;
  page.prefetched = false;
  config_.policy->page_left(ref.id());
  if (page.slot != kNoFrame) came_to_host_memory(ref);
  ++counters_.evictions;
  if (!evicts()) evicts_.store(true, std::memory_order_relaxed);
}

// ---- pages that are as the copy below host memory has them ----

// What a load has learned of a page whose copy below has the same bytes is true of that copy as long as it is there: from then on the
// page leaves HBM without a slot of host memory, without a copy, and is not looked at by a processor.
void Mover::learn_below(PageRef ref) {
  const Page& page = ref.page();
  if (page.spilled == nullptr || page.spilled->known || page.spilled->doubtful || running(page.store)) return;
  if (!page.spilled_current() || !page.slot_current() || page.near != 0) return;
  const auto learned = near_of(page).tier->fingerprint(page.slot);
  if (!learned) return;
  page.spilled->known = true;
  page.spilled->fingerprint = *learned;
}

bool Mover::comparable(PageRef ref) const {
  const Page& page = ref.page();
  if (!page.spilled_current() || !page.spilled->known || page.spilled->doubtful || running(page.store)) return false;
  return config_.spill->kept(page.spilled->slot) && config_.backing->can_compare(ref.region->device);
}

bool Mover::comparing(const Page& page) const {
  const auto found = in_flight_.find(page.store);
  return found != in_flight_.end() && found->second.kind == InFlight::Kind::compare;
}

// REQUIRES: unmapped, its uses complete. The frame stays the page's until it is known that nobody wrote to it.
Status Mover::submit_compare(PageRef ref) {
  Page& page = ref.page();
  DeviceState& device = device_of(*ref.region);
  tiers::Transfer transfer;
  transfer.page = {0, ref.begin()};
  transfer.version = page.version;
  transfer.frame = device.hbm.frame(page.frame).window;
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = tiers::Direction::store;
  transfer.compare_with = page.spilled->fingerprint;
  Transfers::Room room = Transfers::reserve({.region = ref.region,
                                             .page = ref.index,
                                             .bytes = ref.bytes(),
                                             .direction = tiers::Direction::store,
                                             .kind = InFlight::Kind::compare,
                                             .version = page.version});
  VMEM_TRY(config_.backing->submit({&transfer, 1}));
  in_flight_.enter(std::move(room), transfer);
  page.store = transfer.id;
  device.stores_bytes += ref.bytes();
  worked_ = true;
  return {};
}

void Mover::finish_compare(PageRef ref, const InFlight& transfer, const tiers::Completion& completion) {
  Page& page = ref.page();
  device_of(*ref.region).stores_bytes -= transfer.bytes;
  if (page.store == completion.id) page.store = 0;
  // Used again, freed or written anew meanwhile: then it is looked at another time.
  const bool live = ref.region->state.load(std::memory_order_relaxed) == pagetable::RegionState::live;
  const bool left = live && page.mapped == Mapped::nothing && page.frame != kNoFrame && !page.standby &&
                    page.cpu_users == 0 && !page.pinned && !page.kept && page.version == transfer.version &&
                    page.spilled_current();
  if (!left) return;
  if (completion.outcome != tiers::Outcome::done || completion.changed) {
    // The frame has the only copy, which leaves by way of a slot.
    page.spilled->known = false;
    doubt_spilled(page);
    if (completion.changed) found_changed(ref);
    return;
  }
  page.writes_in_a_row = 0;
  counters_.dropped_bytes += ref.bytes();
  frame_given_up(ref, 0);
}

// Busy: a launch that holds everything is about to be queued.
Mover::Evicted Mover::held(PageRef ref, std::uint32_t own_holds) const {
  const auto holds = config_.threads->overlapping_holds(ref.begin(), ref.end());
  if (holds.named > own_holds) return Evicted::held;
  return holds.of_everything != 0 ? Evicted::busy : Evicted::done;
}

// Done: nobody uses or can begin to use the page through its mapping. Otherwise its state word is as it was.
// `own_holds` holds are the caller's own and do not count.
Mover::Evicted Mover::withdraw_access(PageRef ref, std::uint32_t own_holds) {
  Page& page = ref.page();
  const PageState before(page.state.load(std::memory_order_relaxed));
  publish(ref, before.with(Access::none).clear(PageState::kNotify | PageState::kPending));
  Evicted why = Evicted::done;
  if (!config_.threads->synchronize()) {
    why = Evicted::busy;
  } else if (why = held(ref, own_holds); why == Evicted::done) {
    drain_uses();
    if (!uses_complete(*ref.region, page)) why = Evicted::busy;
  }
  if (why != Evicted::done) {
    publish(ref, before);
    ++counters_.eviction_cancels;
  }
  return why;
}

// What the page holds is from an earlier life of its region.
bool Mover::outlived(PageRef ref) { return ref.page().life != ref.region->life.load(std::memory_order_seq_cst); }

// It was freed into a cache, or taken out of it: by now perhaps both.
void Mover::region_changed(Region& region) {
  const std::uint32_t life = region.life.load();
  const bool died = std::exchange(region.life_told, life) != life, dead = region.dead.load();
  tell_policies([&](Policy& policy) {
    if (died) policy.region_dead(region.id, true);
    policy.region_dead(region.id, dead);
  });
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    const PageRef ref{&region, i};
    if (died) keep_no_longer(ref);  // it may be alive again by now; whoever keeps it then asks later
    const bool kept = ref.page().slot != kNoFrame || ref.page().spilled != nullptr;
    if (ref.page().mapped == Mapped::nothing && kept && outlived(ref)) forget_contents(ref);
  }
}

// As if the page had never been written. REQUIRES: unmapped, outlived.
void Mover::forget_contents(PageRef ref) {
  Page& page = ref.page();
  page.version = page.slot_version = 0;
  page.writes_believed = page.writes_in_a_row = 0;
  page.life = ref.region->life.load(std::memory_order_seq_cst);
  drop_spilled(ref);
  if (page.slot != kNoFrame && !running(page.store) && !spilling(page)) drop_slot(ref);
}

bool Mover::uses_complete(Region& region, Page& page) {
  bool all = true;
  for (Stamp& use : page.uses) {
    if (!complete(use)) all = false;
  }
  for (const Stamp use : region.uses) {
    if (!complete(use)) all = false;
  }
  return all;
}

// Whether the work behind a stamp is complete. If no event will tell, records one.
bool Mover::complete(Stamp stamp) {
  if (config_.streams->complete(stamp)) return true;
  const auto covered = config_.streams->cover(stamp);
  if (covered) return false;
  if (covered.error().status == VMEM_ERROR_DEVICE_LOST) {
    lose_device(covered.error());
  } else if (std::has_single_bit(++cover_failures_)) {
    VMEM_LOG_WARN("cannot tell when work on a stream ends (was it destroyed without vmem_stream_close?): {}",
                  covered.error().message);
  }
  return false;
}

Result<Mover::Evicted> Mover::hide(PageRef ref, std::uint32_t own_holds) {
  Page& page = ref.page();
  if (page.mapped == Mapped::nothing) return Evicted::done;
  start_tracking();
  if (page.kept || page.cpu_users != 0) return Evicted::held;
  if (const Evicted why = held(ref, own_holds); why != Evicted::done) return why;
  if (running(page.wait) || !uses_complete(*ref.region, page)) return Evicted::busy;
  const PageState before(page.state.load(std::memory_order_relaxed));
  if (const Evicted why = withdraw_access(ref, own_holds); why != Evicted::done) return why;
  if (auto unmapped = unmap_at(ref); !unmapped) {
    publish(ref, before);
    return std::unexpected(unmapped.error());
  }
  page.mapped = Mapped::nothing;
  return Evicted::done;
}

// The page's bytes in a free frame are about to become an old version, or are not wanted any more.
void Mover::drop_standby(PageRef ref) {
  Page& page = ref.page();
  if (!page.standby) return;
  tiers::FramePool& hbm = device_of(*ref.region).hbm;
  const std::uint64_t busy_until = hbm.frame(page.frame).busy_until;
  hbm.retake(page.frame);
  hbm.give_back(page.frame, busy_until, nullptr);
  page.standby = false;
  page.frame = kNoFrame;
}

}  // namespace vmem::migration
