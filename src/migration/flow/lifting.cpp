#include "migration/flow/lifting.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

Attempt Lifting::lift_one(PageRef excluded) {
  const Attempt lifted = lift_any(excluded.page());
  if (lifted == Attempt::done) return Attempt::after_transfer;
  // A transfer may wait for GPU work that waits for the caller: the caller's patience ends then.
  return comes(lifted) || !parts_.transfers.empty() ? Attempt::after_gpu : Attempt::never;
}

Attempt Lifting::lift_any(const Page& excluded) {
  Attempt sum = Attempt::never;
  // Devices, with the page sizes that they have no frame for.
  std::vector<std::pair<int, std::uint64_t>> no_frames;
  for (Region* region : parts_.residency.live()) {
    const std::pair kind{region->device, region->page_bytes()};
    for (std::uint32_t i = 0; !region->read_only && i < region->page_count; ++i) {
      if (std::ranges::find(no_frames, kind) != no_frames.end()) break;
      const PageRef ref{region, i};
      if (&ref.page() == &excluded || !liftable(ref)) continue;
      const Attempt lifted = lift(ref);
      if (lifted == Attempt::done) return lifted;
      if (lifted == Attempt::never) no_frames.push_back(kind);
      sum = std::min(sum, lifted);
    }
  }
  return sum;
}

bool Lifting::liftable(PageRef ref) const {
  const Page& page = ref.page();
  const bool lost = ref.state().has(PageState::kLost);
  const bool in_host = page.near == 0 && page.slot_current() && page.version != 0 && page.mapped != Mapped::frame;
  return in_host && !lost && !page.kept && !Contents::of_earlier_life(ref);
}

// never: there is no frame of the page's size.
Attempt Lifting::lift(PageRef ref) {
  const Page& page = ref.page();
  if (page.cpu_users != 0 || parts_.transfers.busy_below(page) || parts_.transfers.running(page.store) ||
      parts_.transfers.running(page.wait))
    return Attempt::after_transfer;
  const Access access = page.last_write ? Access::write : Access::read;
  if (page.standby()) return parts_.loader.remap(ref, access) ? Attempt::done : Attempt::after_release;
  // The frame is taken before the page is unmapped, so that a page used in place is not unmapped in
  // vain. A victim that needs a slot of host memory would take the room that is being made.
  const auto grab = parts_.finder.grab({ref, Search::until_busy, Frames::any, Victims::without_slot});
  if (!grab || !grab->frame) return grab && comes(grab->otherwise) ? grab->otherwise : Attempt::never;
  const auto hidden = parts_.gate.hide(ref);
  if (!hidden || *hidden != Attempt::done) {
    tiers::FramePool& hbm = parts_.devices.of(*ref.region).hbm;
    hbm.give_back(*grab->frame, hbm.frame(*grab->frame).busy_until, nullptr);
    return hidden ? *hidden : Attempt::after_release;
  }
  return parts_.loader.load(ref, *grab->frame, access) ? Attempt::done : Attempt::after_release;
}

}  // namespace vmem::migration
