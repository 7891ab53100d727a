// What is where, and how much.
#include <algorithm>

#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

using pagetable::Mapped;

std::optional<Status> QueryRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live(run));
  const Region* const region = run.region;
  const std::uint64_t page_bytes = region->page_bytes();
  for (std::uint32_t i = run.first; i < run.first + run.count; ++i) {
    const Page& page = region->pages[i];
    const bool lost = PageState(page.state.load(std::memory_order_relaxed)).has(PageState::kLost) &&
                      !parts.losses.is_unread({run.region, i});
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
  out = static_cast<const vmem_statistics&>(parts.core.counters);
  for (const Device& device : parts.devices.all()) {
    out.hbm_budget_bytes += device.hbm.budget_bytes();
    out.hbm_used_bytes += device.hbm.used_bytes();
    out.frames_created += device.hbm.frames_created();
    out.frames_destroyed += device.hbm.frames_destroyed();
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
  const CopyCache& copies = parts.near.copies();
  published = {.bytes = copies.bytes(),
               .quota_bytes = std::min(copies.quota_bytes(), host.budget_bytes),
               .dropped_pages = parts.core.counters.published_dropped_pages,
               .dropped_bytes = parts.core.counters.published_dropped_bytes};
  for (const Loan& lent : parts.core.config.loans) {
    const Loan::InUse held = lent.held();
    out.lent_bytes += held.bytes;
    out.lent_overdue_bytes += held.overdue_bytes;
  }
  out.metadata_bytes = out.pages * sizeof(Page) +
                       (parts.residency.live().size() + parts.endings.regions().size()) * sizeof(Region) +
                       parts.core.config.policy->metadata_bytes() + parts.below.metadata_bytes() +
                       parts.below.source_metadata_bytes() + copies.metadata_bytes();
  if (parts.core.config.spill_policy) out.metadata_bytes += parts.core.config.spill_policy->metadata_bytes();
  return Status{};
}

}  // namespace vmem::migration
