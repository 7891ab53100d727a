// Shutdown.
#include "base/log.hpp"
#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

std::optional<Status> EndAllRequest::advance(MoverParts& parts) {
  if (!started_) {
    if (!parts.core.config.threads->barrier_all_threads() || parts.core.config.threads->any_hold())
      return fail(VMEM_ERROR_IN_USE, "ranges are still acquired; release them before vmem_shutdown");
    if (only_check) return Status{};
    started_ = true;
    while (!parts.residency.live().empty()) {
      if (auto ended = parts.endings.end(*parts.residency.live().front(), {}); !ended) return ended;
    }
  }
  if (parts.endings.regions().empty() && parts.transfers.empty()) return Status{};
  if (!parts.stuck.all_stuck(parts.endings.regions())) return std::nullopt;
  VMEM_LOG_ERROR("{}; their memory is left to the system", parts.stuck.words());
  return Status{};
}

}  // namespace vmem::migration
