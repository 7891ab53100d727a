#include "migration/flow/hbm_frames.hpp"

#include <algorithm>

namespace vmem::migration {

using pagetable::kNoFrame;

Result<std::optional<std::uint32_t>> HbmFrames::take(Device& device, std::uint64_t page_bytes, Frames frames) {
  const auto take = [&] {
    return frames == Frames::any ? device.hbm.take(page_bytes)
                                 : device.hbm.take_idle(page_bytes, [this](std::uint64_t transfer) {
                                     return transfers_.running(transfer);
                                   });
  };
  VMEM_ASSIGN(std::optional<std::uint32_t> taken, take());
  if (!taken && room_in_free(device, page_bytes)) {
    VMEM_ASSIGN(const bool room,
                device.hbm.make_room(
                    page_bytes, [this](std::uint64_t transfer) { return transfers_.running(transfer); },
                    [](void* owner) {
                      auto* page = static_cast<Page*>(owner);
                      page->leave_frame();
                    }));
    if (room) {
      VMEM_ASSIGN(taken, take());
    }
  }
  if (!taken) return taken;
  // Starts early, so that policies have some history at the first eviction.
  if (device.hbm.used_bytes() > device.hbm.budget_bytes() - device.hbm.budget_bytes() / 8) uses_.start_tracking();
  if (auto* owner = static_cast<Page*>(device.hbm.frame(*taken).last_owner)) {
    owner->leave_frame();
  }
  return taken;
}

bool HbmFrames::room_in_free(const Device& device, std::uint64_t page_bytes) {
  const tiers::FramePool& hbm = device.hbm;
  const std::uint64_t uncreated = hbm.budget_bytes() - std::min(hbm.budget_bytes(), hbm.created_bytes());
  return hbm.free_bytes() != 0 && uncreated + hbm.free_bytes() >= page_bytes;
}

void HbmFrames::give_up(PageRef ref, std::uint64_t store) {
  Page& page = ref.page();
  devices_.of(*ref.region).hbm.give_back(page.frame, store, &page);
  page.stand_by();
  page.prefetched = false;
  core_.config.policy->page_left(ref.id());
  if (page.slot != kNoFrame) {
    near_.came_to_host_memory(ref);
    near_.copy_used(ref);
  }
  ++core_.counters.evictions;
  if (!evicts()) evicts_.store(true, std::memory_order_relaxed);
}

}  // namespace vmem::migration
