// Room in host memory when it and all below it are full: a page of host memory goes up into a frame, and its slot can be given up.
// Commitments leave free room in one of the tiers, so where host memory and what is below are full, HBM has free frames.
#include <algorithm>
#include <utility>
#include <vector>

#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

// True: a slot will come free, because a page was lifted or because a transfer is in flight, after which there is another look.
bool Mover::room_comes_by_lifting() {
  if (lift_one()) return true;
  if (in_flight_.empty()) return false;
  // A transfer may wait for GPU work that waits for the caller: the caller's patience ends then.
  slots_in_use_ = true;
  return true;
}

bool Mover::lift_one() {
  bool busy = false;
  std::vector<std::pair<int, std::uint64_t>> no_frames;  // devices, and the page sizes that they have no frame for
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
  // A frame first: what is used in place is not to be hidden in vain. No victim takes a slot of host memory for its frame.
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
