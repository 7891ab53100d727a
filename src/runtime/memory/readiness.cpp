#include "runtime/memory/readiness.hpp"

#include <fmt/format.h>

namespace vmem::runtime {

using pagetable::Access;
using pagetable::Page;
using pagetable::PageState;

namespace {

// Ranges of more pages than this, and whole regions, check the region's counters first.
constexpr std::uint32_t kPagesLookedAt = 8;

}  // namespace

Usability usability(const PageRun& range, Access access) {
  const pagetable::Region& region = *range.region;
  if (range.count > kPagesLookedAt || range.count == region.page_count) {
    const auto& short_of = access == Access::write ? region.unwritable : region.unreadable;
    if (short_of.load(std::memory_order_seq_cst) == 0 && region.attention.load(std::memory_order_seq_cst) == 0)
      return Usability::ready;
  }
  Usability worst = Usability::ready;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    const PageState state(region.pages[i].state.load(std::memory_order_seq_cst));
    if (!state.allows(access) || state.has(PageState::kLost)) return Usability::absent;
    if (state.has(PageState::kAttention)) worst = Usability::attention;
  }
  return worst;
}

Status check_device(const migration::StreamRecord& record) {
  if (record.device >= 0) [[likely]]
    return {};
  return fail(
      VMEM_ERROR_UNSUPPORTED,
      fmt::format("stream {} belongs to a device or context that vmem does not use; it uses the primary contexts "
                  "of the devices that the option devices names",
                  static_cast<void*>(record.handle.load())));
}

Status Readiness::order_after_loads(const PageRun& range, CUstream stream) const {
  void* waited = nullptr;
  bool notify = false;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    Page& page = range.region->pages[i];
    const PageState state(page.state.load(std::memory_order_seq_cst));
    if (state.has(PageState::kNotify)) notify = take_notify(*range.region, page) || notify;
    if (!state.has(PageState::kPending)) continue;
    void* ready = page.ready.load(std::memory_order_acquire);
    if (ready == waited) continue;
    VMEM_TRY(driver_.check(driver_->cuStreamWaitEvent(stream, static_cast<CUevent>(ready), 0), "cuStreamWaitEvent"));
    waited = ready;
  }
  if (notify) mover_.poke();
  return {};
}

Status Readiness::open_to(const PageRun& range, const migration::StreamRecord& record) const {
  if ((range.region->devices.load(std::memory_order_acquire) >> record.device & 1) != 0) return {};
  migration::PeerAccessRequest request;
  request.region = range.region;
  request.device = record.device;
  return mover_.call(request);
}

}  // namespace vmem::runtime
