// Finds a slot of near memory for a page. If host memory is full, in this order: releases second
// copies of resident pages; spills pages; lifts pages (moves them up into free frames). For a page
// that has no other place it then releases copies that VMEM_ADVISE_READ_MOSTLY asks to keep. Malloc
// accepts no more than all tiers hold, so HBM has free frames when every tier below it is full.
#include <algorithm>
#include <utility>
#include <vector>

#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

// ---- slots ----

// True if the page has a slot. False if it gets one later: a slot is being made, or a store in
// flight has to complete first.
Result<bool> Mover::need_slot(PageRef ref, Displaces displaces) {
  Page& page = ref.page();
  if (page.slot != kNoFrame) return !spilling(page);
  bool comes = false;
  // Pages of files only pass through host memory.
  for (const std::uint8_t lender : device_of(*ref.region).config.lenders) {
    if (ref.region->read_only) break;
    const std::uint8_t near = lender + 1;
    VMEM_ASSIGN(const LentSlot lent, allocate_lent(near, ref.bytes()));
    if (lent.grant.grant == tiers::Grant::later) return false;
    comes = comes || lent.comes;
    if (lent.grant.grant == tiers::Grant::full) continue;
    settle_in(ref, {near, lent.grant.slot});
    return true;
  }
  Result<bool> in_host = need_host_slot(ref, displaces);
  if (!in_host && comes && in_host.error().status == VMEM_ERROR_OUT_OF_MEMORY) return false;
  return in_host;
}

// The same in host memory. REQUIRES: what the page's slot has, if it has one, is not current.
Result<bool> Mover::need_host_slot(PageRef ref, Displaces displaces) {
  Page& page = ref.page();
  if (page.slot != kNoFrame && page.near == 0) return !spilling(page);
  if (page.slot != kNoFrame) drop_slot(ref);
  VMEM_ASSIGN(const std::optional<Place> place, find_host_slot(ref, displaces));
  if (!place) return false;
  settle_in(ref, *place);
  if (ref.region->read_only) borrowed_.push_back(ref);
  return true;
}

// Nothing: one will come.
Result<std::optional<Place>> Mover::find_host_slot(PageRef ref, Displaces displaces) {
  const bool awaited = advancing_requests_ && displaces != Displaces::unwanted;
  // Several small pages could take, again and again, what a request collects for a larger one.
  if (!awaited && ref.bytes() < room_awaited_bytes_) return std::nullopt;
  auto found = look_for_host_slot(ref, displaces);
  if (awaited && found && !*found) room_awaited_bytes_ = std::max(room_awaited_bytes_, ref.bytes());
  return found;
}

Result<std::optional<Place>> Mover::look_for_host_slot(PageRef ref, Displaces displaces) {
  const std::uint64_t page_bytes = ref.bytes();
  tiers::SlotGrant grant;
  if (leaves_room_for_files(ref)) {
    VMEM_ASSIGN(grant, config_.backing->allocate(page_bytes));
  }
  GivenUp borrowed;
  if (grant.grant == tiers::Grant::full) {
    borrowed = give_up_borrowed(page_bytes, displaces);
    if (borrowed.bytes >= page_bytes) {
      VMEM_ASSIGN(grant, config_.backing->allocate(page_bytes));
    }
  }
  std::optional<Error> none;
  if (grant.grant == tiers::Grant::full) {
    // Of a page of this size, which serves as it is; else of others, whose memory makes one.
    const GivenUp same = give_up_slots(0, page_bytes, Copies::of_this_size);
    if (same.bytes == 0 && same.busy) return std::nullopt;
    const GivenUp any = same.bytes != 0 ? same : give_up_slots(0, page_bytes, Copies::of_any_size);
    if (same.bytes != 0 || any.bytes >= page_bytes) {
      VMEM_ASSIGN(grant, config_.backing->allocate(page_bytes));
    } else if (config_.spill != nullptr) {
      const auto room = make_slot_room(page_bytes, displaces);
      if (!room) none = room.error();
      if (room && !*room) return std::nullopt;
      if (room) {
        VMEM_ASSIGN(grant, config_.backing->allocate(page_bytes));
        // The released slots were of other sizes and make no slot of this size yet.
        if (grant.grant == tiers::Grant::full) return std::nullopt;
      }
    }
    // A slot is released when a transfer completes, or more slots of other sizes are released next.
    const bool more = displaces == Displaces::lifting && any.bytes != 0;
    if (none && (any.busy || more || recalling_to_host())) return std::nullopt;
  }
  if (grant.grant == tiers::Grant::granted) return Place{0, grant.slot};
  if (grant.grant == tiers::Grant::later || borrowed.busy || lent_comes_back()) return std::nullopt;
  const bool lifts = displaces == Displaces::lifting || (ref.region->read_only && displaces != Displaces::unwanted);
  if (lifts && config_.in_place != nullptr && room_comes_by_lifting()) return std::nullopt;
  if (displaces == Displaces::advised) {
    const GivenUp advised = give_up_slots(0, page_bytes, Copies::of_read_mostly_too);
    if (advised.bytes >= page_bytes) {
      VMEM_ASSIGN(grant, config_.backing->allocate(page_bytes));
    }
    if (grant.grant == tiers::Grant::granted) return Place{0, grant.slot};
    if (advised.busy) return std::nullopt;
  }
  return std::unexpected(none ? *none : full_error("a backing copy", page_bytes));
}

void Mover::settle_in(PageRef ref, Place place) {
  Page& page = ref.page();
  page.near = place.near;
  page.slot = place.slot;
  page.slot_version = 0;
  page.store = 0;
}

void Mover::retain(PageRef ref) {
  Page& page = ref.page();
  if (page.slot == kNoFrame || page.retained || ref.region->read_only) return;
  page.retained = true;
  retained_[page.near].push_back(ref);
}

// Releases near slots of resident pages until `bytes` are free. Such a slot only saves the store
// when its page is evicted.
Mover::GivenUp Mover::give_up_slots(std::size_t near, std::uint64_t bytes, Copies which) {
  GivenUp given;
  std::deque<PageRef>& retained = retained_[near];
  for (std::size_t left = retained.size(); left > 0 && given.bytes < bytes; --left) {
    const PageRef ref = retained.front();
    retained.pop_front();
    if (!still_retained(ref)) continue;
    Page& page = ref.page();
    if (page.near != near) {  // its slot is another one since
      retained_[page.near].push_back(ref);
      continue;
    }
    const bool advised = page.read_mostly && ref.live();
    const bool suits = (!advised || which == Copies::of_read_mostly_too) && !is_unread(ref) &&
                       (which != Copies::of_this_size || ref.bytes() == bytes);
    const bool busy = page.cpu_users != 0 || running(page.wait) || running(page.store) || spilling(page);
    if (!suits || busy) {
      given.busy = given.busy || suits;
      retained.push_back(ref);
      continue;
    }
    page.retained = false;
    drop_slot(ref);
    given.bytes += ref.bytes();
  }
  return given;
}

// False if the page has left HBM or lost its slot since it was queued. Entries of an ending region
// count: until its last use completes its pages hold a frame and a slot, and malloc counted one.
bool Mover::still_retained(PageRef ref) {
  Page& page = ref.page();
  // A page that is being compared with its slot is unmapped and in its frame.
  const bool in_frame = page.frame != kNoFrame && !page.standby;
  if (page.retained && page.slot != kNoFrame && in_frame) return true;
  page.retained = false;
  return false;
}

// ---- lifting ----

// True if a slot will come free: a page was lifted, or a transfer is in flight and the caller looks
// again when it has ended.
bool Mover::room_comes_by_lifting() {
  if (lift_one()) return true;
  if (in_flight_.empty()) return false;
  // A transfer may wait for GPU work that waits for the caller: the caller's patience ends then.
  slots_in_use_ = true;
  return true;
}

bool Mover::lift_one() {
  bool busy = false;
  // Devices, with the page sizes that they have no frame for.
  std::vector<std::pair<int, std::uint64_t>> no_frames;
  for (Region* region : live_) {
    const std::pair kind{region->device, region->page_bytes()};
    for (std::uint32_t i = 0; !region->read_only && i < region->page_count; ++i) {
      if (std::ranges::find(no_frames, kind) != no_frames.end()) break;
      const Lifted lifted = lift({region, i});
      if (lifted == Lifted::yes) return true;
      if (lifted == Lifted::no_frame) no_frames.push_back(kind);
      busy = busy || lifted == Lifted::busy;
    }
  }
  slots_in_use_ = slots_in_use_ || busy;
  return busy;
}

Mover::Lifted Mover::lift(PageRef ref) {
  const Page& page = ref.page();
  const bool lost = PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost);
  const bool in_host = page.near == 0 && page.slot_current() && page.version != 0 && page.mapped != Mapped::frame;
  if (&page == serving_ || !in_host || lost || page.kept || outlived(ref)) return Lifted::no;
  if (page.cpu_users != 0 || spilling(page) || running(page.store) || running(page.wait)) return Lifted::busy;
  const Access access = page.last_write ? Access::write : Access::read;
  const Serving serving(*this, ref);
  if (page.standby) return map_kept_frame(ref, access) ? Lifted::yes : Lifted::no;
  // The frame is taken before the page is unmapped, so that a page used in place is not unmapped in
  // vain. A victim that needs a slot of host memory would take the room that is being made.
  const FrameWish wish{ref.bytes(), Search::until_busy, Frames::any, Victims::without_slot};
  const auto grab = grab_frame(device_of(*ref.region), wish);
  if (!grab || !grab->frame) return grab && grab->busy ? Lifted::busy : Lifted::no_frame;
  const auto hidden = hide(ref);
  if (!hidden || *hidden != Evicted::done) {
    tiers::FramePool& hbm = device_of(*ref.region).hbm;
    hbm.give_back(*grab->frame, hbm.frame(*grab->frame).busy_until, nullptr);
    return hidden && *hidden == Evicted::busy ? Lifted::busy : Lifted::no;
  }
  return load_frame(ref, *grab->frame, access, false, false) ? Lifted::yes : Lifted::no;
}

}  // namespace vmem::migration
