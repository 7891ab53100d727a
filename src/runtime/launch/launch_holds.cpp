#include "runtime/launch/launch_holds.hpp"

#include <algorithm>

namespace vmem::runtime {

using pagetable::PageState;

namespace {

// Of a page of what the launch names.
bool any_has(const LaunchHolds& holds, std::uint32_t bits) {
  return std::ranges::any_of(holds.held, [&](const LaunchHolds::Held& held) {
    if (held.source == LaunchHolds::Source::table) return false;
    const PageRun pages = held.pages();
    for (std::uint32_t i = pages.first; i < pages.first + pages.count; ++i) {
      if (PageState(held.region->pages[i].state.load(std::memory_order_relaxed)).has(bits)) return true;
    }
    return false;
  });
}

}  // namespace

bool all_in_hbm(const LaunchHolds& holds) { return !any_has(holds, PageState::kInPlace); }

bool wants_frames(const LaunchHolds& holds) { return any_has(holds, PageState::kWantsFrame); }

}  // namespace vmem::runtime
