// Pages that stay mapped.
#include "migration/parts.hpp"
#include "migration/request.hpp"
#include "migration/requests/pins.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

std::optional<Status> KeepRequest::advance(MoverParts& parts) {
  VMEM_TRY(check_live(run));
  if (run.region->undeclared && !run.region->tells_changes.load(std::memory_order_relaxed)) {
    // Set before the check: a thread that changes the region's life either sees it, or is seen
    // here.
    run.region->tells_changes.store(true, std::memory_order_seq_cst);
    parts.uses.pages_changed(*run.region, 0, run.region->page_count);
  }
  Device& device = parts.devices.of(*run.region);
  const auto counted = [&](const Page& page) { return page.pinned || page.kept; };
  std::uint64_t more = 0;
  for (std::uint32_t i = page_; i < run.count; ++i)
    more += counted(run.region->pages[run.first + i]) ? 0 : run.region->page_bytes();
  VMEM_TRY(check_room_for_pins(device, more));
  for (; page_ < run.count; ++page_) {
    const PageRef ref{run.region, run.first + page_};
    Page& page = ref.page();
    if (page.kept) continue;
    if (page.in_place) {
      parts.in_place.needed_in_hbm(ref);
      VMEM_TRY(parts.gate.hide(ref));  // if something uses it, it stays where it is
    }
    if (page.mapped == Mapped::nothing) {
      VMEM_ASSIGN(const auto served,
                  parts.bring_in.make_usable(ref, Access::read, OldBytes::fetch, {.evict = true, .wait = may_wait_}));
      if (served.lacks == Lacks::frame && patience_.over(parts.core)) may_wait_ = false;
      if (served.lacks == Lacks::bytes && below_.over(parts.core))
        return std::unexpected(parts.stuck.unserved_error(ref));
      if (served.lacks != Lacks::nothing) return std::nullopt;
      below_.reset();
    }
    if (!counted(page)) device.pinned_bytes += ref.bytes();
    page.kept = true;
  }
  // Launches will not wait for loads into kept pages, so wait for those in flight.
  for (std::uint32_t i = 0; i < run.count; ++i) {
    if (!parts.transfers.running(run.region->pages[run.first + i].wait)) continue;
    if (!patience_.over(parts.core, 10)) return std::nullopt;
    return fail(VMEM_ERROR_TIMEOUT, "it is on its way to HBM, and the GPU makes no progress");
  }
  return Status{};
}

}  // namespace vmem::migration
