// Makes room in host memory when it and all tiers below are full: moves a page from host memory up
// into a frame, so that its slot can be reused. Malloc accepts no more than all tiers hold, so HBM
// has free frames then.
#include <algorithm>
#include <utility>
#include <vector>

#include "migration/mover.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

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
