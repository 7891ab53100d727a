#include "runtime/launch/launch_holds.hpp"

#include <algorithm>

namespace vmem::runtime {

using pagetable::PageState;

bool all_in_hbm(const LaunchHolds& holds) {
  return std::ranges::none_of(holds.held, [](const LaunchHolds::Held& held) {
    if (held.source == LaunchHolds::Source::table) return false;
    const PageRun pages = held.pages();
    for (std::uint32_t i = pages.first; i < pages.first + pages.count; ++i) {
      if (PageState(held.region->pages[i].state.load(std::memory_order_relaxed)).has(PageState::kWantsFrame))
        return true;
    }
    return false;
  });
}

}  // namespace vmem::runtime
