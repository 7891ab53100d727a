#include "migration/core.hpp"

#include <bit>

#include "base/log.hpp"

namespace vmem::migration {

void Core::note(PageRef ref, Happened what) {
  const std::uint32_t granules = ref.end() - ref.begin();
  journal.add({now_us(), ref.begin(), granules, what});
  record([&](trace::Recorder& to) { to.add(now_ns(), trace::PageChanges{what, ref.begin(), granules}); });
}

void Core::lose_device(const Error& error) {
  if (lost) return;
  lost = error;
  lost->status = VMEM_ERROR_DEVICE_LOST;
  VMEM_LOG_ERROR("the GPU context is lost, vmem stops here: {}", error.message);
}

void Core::eviction_failed(PageRef ref, const Error& error) {
  if (error.status == VMEM_ERROR_DEVICE_LOST) return lose_device(error);
  if (!std::has_single_bit(++evict_failures_)) return;
  VMEM_LOG_WARN("could not evict the page at {:#x}: {} ({} such failures)", address_of(ref), error.message,
                evict_failures_);
}

}  // namespace vmem::migration
