#include "migration/page/pending_pages.hpp"

#include <atomic>

namespace vmem::migration {

std::uint32_t PendingPages::wait_for(PageRef ref, std::uint64_t transfer) {
  Page& page = ref.page();
  page.wait = transfers_.running(transfer) ? transfer : 0;
  if (page.wait == 0) return 0;
  page.ready.store(transfers_.event_of(transfer), std::memory_order_release);
  pages_.push_back(ref);
  return PageState::kPending;
}

void PendingPages::settle() {
  std::erase_if(pages_, [&](PageRef ref) {
    Page& page = ref.page();
    if (transfers_.running(page.wait)) return false;
    page.wait = 0;
    const PageState state = ref.state();
    if (state.has(PageState::kPending)) residency_.publish(ref, state.clear(PageState::kPending));
    return true;
  });
}

void PendingPages::forget(const Region& region) {
  std::erase_if(pages_, [&](PageRef ref) { return ref.region == &region; });
}

}  // namespace vmem::migration
