#include "migration/flow/stuck.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "migration/place/full_error.hpp"

namespace vmem::migration {

Error Stuck::unserved_error(PageRef ref) const {
  const Page& page = ref.page();
  const std::string waited = exact_duration_us(core_.config.call_wait_us);
  const std::string name = fmt::format("the page at {:#x} ({})", core_.address_of(ref), format_bytes(ref.bytes()));
  if (page.spilled_current() && !page.slot_current()) {
    const bool asked = transfers_.running(page.spilled->transfer);
    return {VMEM_ERROR_TIMEOUT, 0,
            fmt::format("{} {} within {} (option call_wait); {} keeps it: try again, or see to that disk or node", name,
                        asked ? "did not come" : "found no room to come to", waited,
                        below_.of(ref).where(page.spilled->slot))};
  }
  const std::string slow = place();
  const std::string stuck = slow.empty() ? "" : fmt::format(", with pages that wait for {}", slow);
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("{} found no room in host memory within {} (option call_wait){}; it is kept: {}", name, waited,
                      stuck, full_error(core_, devices_, near_, below_, "a page in host memory", ref.bytes()).message)};
}

bool Stuck::stuck(const InFlight& transfer) const {
  const bool below = transfer.kind == InFlight::Kind::spill || transfer.kind == InFlight::Kind::arrival;
  return below && core_.now_us() - transfer.since_us >= core_.config.call_wait_us;
}

bool Stuck::all_stuck(const std::vector<Region*>& ending) const {
  if (transfers_.empty()) return false;
  const bool all =
      std::all_of(transfers_.begin(), transfers_.end(), [&](const auto& each) { return stuck(each.second); });
  return all && std::ranges::all_of(ending, [&](const Region* region) { return transfers_.any_of(*region); });
}

std::string Stuck::place() const {
  const InFlight* eldest = nullptr;
  for (const auto& [id, transfer] : transfers_) {
    const Page& page = transfer.region->pages[transfer.page];
    if (page.spilled == nullptr || page.spilled->slot == pagetable::kNoFrame || page.spilled->transfer != id) continue;
    if (eldest == nullptr || transfer.since_us < eldest->since_us) eldest = &transfer;
  }
  if (eldest == nullptr) return "";
  const PageRef ref{eldest->region, eldest->page};
  return below_.of(ref).where(ref.page().spilled->slot);
}

std::string Stuck::words() const {
  const std::string slow = place();
  return fmt::format("{} pages on their way to or from {} did not get there within {} (option call_wait)",
                     transfers_.size(), slow.empty() ? "a tier" : slow, exact_duration_us(core_.config.call_wait_us));
}

}  // namespace vmem::migration
