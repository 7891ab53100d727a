// Waits until nothing is in flight.
#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

std::optional<Status> QuiesceRequest::advance(MoverParts& parts) {
  const bool idle = parts.transfers.empty() && parts.endings.regions().empty() && !parts.ahead.asked() &&
                    parts.core.requests_waiting == 0;
  if (idle && !parts.core.worked) return Status{};
  // Prefetches that have not started wait for the stuck transfers, too.
  if (parts.stuck.all_stuck(parts.endings.regions()) && parts.core.requests_waiting == 0)
    return fail(VMEM_ERROR_TIMEOUT, parts.stuck.words());
  return std::nullopt;
}

}  // namespace vmem::migration
