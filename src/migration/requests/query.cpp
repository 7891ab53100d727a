// What is where, and how much.
#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

using pagetable::Mapped;

std::optional<Status> QueryRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live({region, 0, 1}));
  const std::uint64_t page_bytes = region->page_bytes();
  for (std::uint32_t i = 0; i < region->page_count; ++i) {
    const Page& page = region->pages[i];
    const bool lost = PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost) &&
                      !parts.losses.is_unread({region, i});
    const bool in_hbm = page.owns_frame();
    std::size_t& where = lost                                    ? info.bytes_lost
                         : in_hbm                                ? info.bytes_hbm
                         : page.near != 0 && page.slot_current() ? info.bytes_peer
                         : page.mapped == Mapped::slot           ? info.bytes_host_mapped
                         : page.slot_current()                   ? info.bytes_host
                         : region->read_only                     ? info.bytes_file
                         : page.version != 0                     ? info.bytes_below_host
                                                                 : info.bytes_unbacked;
    where += page_bytes;
  }
  return Status{};
}

std::optional<Status> StatisticsRequest::advance(MoverParts& parts) {
  vmem_statistics& out = statistics;
  const MoverCounters& in = parts.core.counters;
  out.allocated_bytes = in.allocated_bytes;
  out.committed_bytes = in.committed_bytes;
  for (const Device& device : parts.devices.all()) {
    out.hbm_budget_bytes += device.hbm.budget_bytes();
    out.hbm_used_bytes += device.hbm.used_bytes();
    out.frames_created += device.hbm.frames_created();
  }
  const tiers::TierUsage host = parts.core.config.backing->usage();
  out.host_budget_bytes = host.budget_bytes;
  out.host_used_bytes = host.used_bytes;
  for (std::size_t i = 1; i < parts.near.count(); ++i) {
    const tiers::TierUsage lent = parts.near[i].tier->usage();
    out.peer_budget_bytes += lent.budget_bytes;
    out.peer_used_bytes += lent.used_bytes;
  }
  if (parts.core.config.spill != nullptr) {
    const tiers::TierUsage below = parts.core.config.spill->usage();
    out.nvme_budget_bytes = below.budget_bytes;
    out.nvme_used_bytes = below.used_bytes;
  }
  for (const LentOut& lent : parts.core.config.lent_out) {
    const LentOut::InUse held = lent.held();
    out.lent_bytes += held.bytes;
    out.lent_overdue_bytes += held.overdue_bytes;
  }
  out.peer_in_bytes = in.peer_in_bytes;
  out.peer_out_bytes = in.peer_out_bytes;
  out.peer_returned_bytes = in.peer_returned_bytes;
  out.spilled_bytes = in.spilled_bytes;
  out.recalled_bytes = in.recalled_bytes;
  out.spills_dropped_bytes = in.spills_dropped_bytes;
  out.file_mapped_bytes = in.file_mapped_bytes;
  out.file_read_bytes = in.file_read_bytes;
  out.read_to_hbm_bytes = in.read_to_hbm_bytes;
  out.pages = in.pages;
  out.metadata_bytes =
      in.pages * sizeof(Page) + (parts.residency.live().size() + parts.endings.regions().size()) * sizeof(Region) +
      parts.core.config.policy->metadata_bytes() + parts.below.metadata_bytes() + parts.below.source_metadata_bytes();
  if (parts.core.config.spill_policy) out.metadata_bytes += parts.core.config.spill_policy->metadata_bytes();
  out.acquire_misses = in.acquire_misses;
  out.in_place_acquires = in.in_place_acquires;
  out.acquire_waits = in.acquire_waits;
  out.acquire_wait_us = in.acquire_wait_us;
  out.mover_busy_us = in.busy_us;
  out.migrated_in_bytes = in.migrated_in_bytes;
  out.migrated_out_bytes = in.migrated_out_bytes;
  out.dropped_bytes = in.dropped_bytes;
  out.prefetched_bytes = in.prefetched_bytes;
  out.prefetched_used_bytes = in.prefetched_used_bytes;
  out.evictions = in.evictions;
  out.eviction_cancels = in.eviction_cancels;
  out.maps = in.maps;
  out.unmaps = in.unmaps;
  out.stray_writes = in.stray_writes;
  return Status{};
}

}  // namespace vmem::migration
