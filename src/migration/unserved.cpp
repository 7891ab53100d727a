// Disks and nodes that do not answer. Calls that wait for them end after a stated time; what is in flight stays in the ledger,
// and with it the memory that it reads or writes, until the tier says that it has ended.
#include <fmt/format.h>

#include <algorithm>

#include "base/options.hpp"
#include "migration/mover.hpp"

namespace vmem::migration {

bool Deadline::over(const Mover& mover) {
  const std::uint64_t now_us = mover.config_.now_us();
  if (since_us_ == 0) since_us_ = now_us;
  return now_us - since_us_ >= mover.config_.call_wait_us;
}

// Why a call that waited for the page ends, and where the page is.
Error Mover::unserved_error(PageRef ref) {
  const Page& page = ref.page();
  const std::string waited = exact_duration_us(config_.call_wait_us);
  const std::string name = fmt::format("the page at {:#x} ({})", address_of(ref), format_bytes(ref.bytes()));
  if (page.spilled_current() && !page.slot_current()) {
    const bool asked = running(page.spilled->transfer);
    return {VMEM_ERROR_TIMEOUT, 0,
            fmt::format("{} {} within {} (option call_wait); {} keeps it: try again, or see to that disk or node", name,
                        asked ? "did not come" : "found no room to come to", waited,
                        below_of(*ref.region).where(page.spilled->slot))};
  }
  const std::string place = stuck_place();
  const std::string stuck = place.empty() ? "" : fmt::format(", with pages that wait for {}", place);
  return {VMEM_ERROR_TIMEOUT, 0,
          fmt::format("{} found no room in host memory within {} (option call_wait){}; it is kept: {}", name, waited,
                      stuck, full_error("a page in host memory", ref.bytes()).message)};
}

bool Mover::stuck(const InFlight& transfer) const {
  const bool below = transfer.kind == InFlight::Kind::spill || transfer.kind == InFlight::Kind::arrival;
  return below && config_.now_us() - transfer.since_us >= config_.call_wait_us;
}

// Something is in flight, none of it ends, and no region waits for anything else.
bool Mover::only_stuck() const {
  if (in_flight_.empty()) return false;
  const bool all =
      std::all_of(in_flight_.begin(), in_flight_.end(), [&](const auto& each) { return stuck(each.second); });
  return all && std::ranges::all_of(ending_, [&](const Region* region) { return has_transfers(*region); });
}

// The disk, node or file of the transfer that has been in flight longest; empty if none goes below host memory.
std::string Mover::stuck_place() const {
  const InFlight* eldest = nullptr;
  for (const auto& [id, transfer] : in_flight_) {
    const Page& page = transfer.region->pages[transfer.page];
    if (page.spilled == nullptr || page.spilled->slot == pagetable::kNoFrame || page.spilled->transfer != id) continue;
    if (eldest == nullptr || transfer.since_us < eldest->since_us) eldest = &transfer;
  }
  if (eldest == nullptr) return "";
  return below_of(*eldest->region).where(eldest->region->pages[eldest->page].spilled->slot);
}

std::string Mover::stuck_words() const {
  const std::string place = stuck_place();
  return fmt::format("{} pages on their way to or from {} did not get there within {} (option call_wait)",
                     in_flight_.size(), place.empty() ? "a tier" : place, exact_duration_us(config_.call_wait_us));
}

}  // namespace vmem::migration
