// Drained mode: makes a new region accessible as a whole.
#include <fmt/format.h>

#include <string>

#include "base/sizes.hpp"
#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

using pagetable::Access;
using pagetable::Mapped;

std::optional<Status> SettleRequest::advance(MoverParts& parts) {
  const auto outcome = [&] { return failed_ ? Status(std::unexpected(*failed_)) : Status{}; };
  const bool placed = !failed_ && place_region(parts);
  if (!placed && !failed_ && idle) return std::nullopt;
  if (!idle) {
    settled = placed;
    return outcome();
  }
  // Placed or failed: make the pages evicted for the region accessible again.
  for (Region* each : parts.residency.live()) {
    if (each->dead.load()) continue;
    for (std::uint32_t i = 0; i < each->page_count; ++i) {
      if (each->pages[i].mapped != Mapped::nothing) continue;
      VMEM_ASSIGN(const auto served, parts.bring_in.make_usable({each, i}, Access::read, OldBytes::fetch, {}));
      if (served.lacks != Lacks::bytes) continue;
      if (!below_.over(parts.core)) return std::nullopt;  // a host slot is being made
      return failed_ ? outcome() : std::unexpected(parts.stuck.unserved_error({each, i}));
    }
  }
  if (parts.pending.empty()) {
    settled = placed;
    return outcome();
  }
  if (!below_.over(parts.core)) return std::nullopt;
  const std::string place = parts.stuck.place();
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("page transfers did not finish within {} (option call_wait){}{}",
                                              exact_duration_us(parts.core.config.call_wait_us),
                                              place.empty() ? "" : ": waiting for ", place));
}

// True: the whole region is mapped. False: not yet, or failed_ has the reason.
bool SettleRequest::place_region(MoverParts& parts) {
  for (; page_ < region->page_count; ++page_) {
    const PageRef ref{region, page_};
    if (ref.page().mapped != Mapped::nothing) continue;
    const auto served = parts.bring_in.make_usable(ref, Access::read, OldBytes::fetch,
                                                   {.evict = idle, .wait = idle && may_wait_, .in_place = idle});
    if (served && served->lacks == Lacks::nothing) {
      below_.reset();
      continue;
    }
    if (!served) failed_ = served.error();
    if (served && served->lacks == Lacks::bytes && idle && below_.over(parts.core))
      failed_ = parts.stuck.unserved_error(ref);
    if (served && served->lacks == Lacks::frame && idle && patience_.over(parts.core)) may_wait_ = false;
    return false;
  }
  return true;
}

}  // namespace vmem::migration
