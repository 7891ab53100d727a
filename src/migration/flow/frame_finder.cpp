#include "migration/flow/frame_finder.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;

namespace {

// Victims per query. A prefetch may evict the policy's first choices only: the pages further down
// are needed sooner.
constexpr std::size_t kVictims = 8;

}  // namespace

bool arrived(PageRef ref) {
  const Page& page = ref.page();
  return page.mapped == Mapped::nothing && page.owns_frame() && page.spilled != nullptr && page.spilled->wanted;
}

Result<Grab> FrameFinder::grab(const FrameWish& wish) {
  Device& device = parts_.devices.of(*wish.page.region);
  if (wish.search == Search::no_victims) {
    VMEM_ASSIGN(const auto taken, parts_.frames.take(device, wish.page.bytes(), wish.frames));
    return Grab{taken};
  }
  VMEM_ASSIGN(Grab grab, find(device, wish));
  // A direct read in flight ends with the page's frame or a free one.
  if (!grab.frame && device.arriving_bytes != 0) grab.otherwise = std::min(grab.otherwise, Attempt::after_transfer);
  return grab;
}

Result<Grab> FrameFinder::find(Device& device, const FrameWish& wish) {
  const std::uint64_t page_bytes = wish.page.bytes();
  const Search search = wish.search;
  Grab grab;
  VMEM_ASSIGN(grab.frame, parts_.frames.take(device, page_bytes, wish.frames));
  if (grab.frame) return grab;
  if (HbmFrames::room_in_free(device, page_bytes)) return Grab{{}, Attempt::after_gpu};
  VictimQuery query;
  query.device = device.index;
  query.page_bytes = query.bytes_wanted = page_bytes;
  std::array<PageId, kVictims> candidates;
  for (;;) {
    const std::size_t offered = parts_.core.config.policy->victims(query, candidates);
    VMEM_ASSIGN(const bool taken, evict_one_of(device, wish, std::span(candidates).first(offered), grab));
    if (taken || search == Search::first_choices) return grab;
    if (comes(grab.otherwise) || offered < candidates.size()) return grab;
    query.again = true;
  }
}

Result<bool> FrameFinder::evict_one_of(Device& device, const FrameWish& wish, std::span<const PageId> candidates,
                                       Grab& grab) {
  const std::uint64_t page_bytes = wish.page.bytes();
  std::uint64_t leaving_bytes = 0;
  for (const PageId candidate : candidates) {
    const PageRef victim{parts_.core.config.space->find(candidate.region), candidate.index};
    if (!victim.live()) continue;
    // Prefetches must not evict pages that were read directly and are not mapped yet, or none would
    // ever be mapped.
    if (wish.search == Search::first_choices && arrived(victim)) continue;
    if (wish.victims == Victims::without_slot && !leaves_without_slot(victim)) continue;
    const auto evicted = parts_.evictor.evict(victim, wish.page);
    if (!evicted) {
      if (evicted.error().status == VMEM_ERROR_DEVICE_LOST) return std::unexpected(evicted.error());
      parts_.core.eviction_failed(victim, evicted.error());
      continue;
    }
    if (*evicted != Attempt::done) {
      grab.otherwise = std::min(grab.otherwise, *evicted);
      const bool compared = *evicted == Attempt::after_transfer && parts_.fingerprints.comparing(victim.page());
      leaving_bytes += compared ? victim.bytes() : 0;
      if (leaving_bytes >= page_bytes) return true;
      continue;
    }
    VMEM_ASSIGN(grab.frame, parts_.frames.take(device, page_bytes, wish.frames));
    if (grab.frame) return true;
    if (HbmFrames::room_in_free(device, page_bytes)) {
      grab.otherwise = std::min(grab.otherwise, Attempt::after_gpu);
      return true;
    }
  }
  return false;
}

bool FrameFinder::leaves_without_slot(PageRef ref) const {
  const Page& page = ref.page();
  if (page.version == 0 || page.slot != kNoFrame || Contents::of_earlier_life(ref) ||
      parts_.fingerprints.comparable(ref))
    return true;
  if (parts_.mapper.write_protected(*ref.region) && page.spilled_current()) return true;
  return std::ranges::any_of(parts_.devices.of(*ref.region).config.lenders, [&](std::uint8_t lender) {
    const tiers::TierUsage lent = parts_.near[lender + 1u].tier->usage();
    return lent.used_bytes + ref.bytes() <= lent.budget_bytes || !parts_.near.offered(lender + 1u).empty();
  });
}

}  // namespace vmem::migration
