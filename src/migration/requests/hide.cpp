// Strict mode: unmaps every page that nobody holds.
#include "migration/parts.hpp"
#include "migration/request.hpp"

namespace vmem::migration {

std::optional<Status> HideRequest::advance(MoverParts& parts) {
  bool busy = false;
  for (Region* region : parts.residency.live()) {
    for (std::uint32_t i = 0; i < region->page_count; ++i) {
      VMEM_ASSIGN(const Attempt hidden, parts.gate.hide({region, i}));
      busy = busy || hidden == Attempt::after_gpu;
    }
  }
  if (!busy) return Status{};
  // Generous: --strict need not be fast, and must not fail on a busy machine.
  if (!patience_.over(parts.core, 100)) return std::nullopt;
  return fail(
      VMEM_ERROR_IN_USE,
      "--strict runs one launch at a time, and work queued before this one does not end: on a stream in capture, "
      "or one that waits for the program");
}

}  // namespace vmem::migration
