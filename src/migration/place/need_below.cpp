#include "migration/place/need_below.hpp"

#include <algorithm>
#include <utility>

namespace vmem::migration {
namespace {

// Asked for at once; and for how long it counts as needed.
constexpr std::uint64_t kLackingPages = 8, kLackingUs = 2'000'000;
constexpr std::uint64_t kLookAgainUs = 1'000;
constexpr std::uint64_t kAskAgainUs = 100'000;  // if nothing was granted

}  // namespace

bool NeedBelow::has_grown() {
  const tiers::GrowingTier* const growing = core_.abilities.spill.growing;
  if (growing == nullptr) return false;
  const std::uint64_t now = growing->changes();
  return std::exchange(changes_, now) != now;
}

std::uint64_t NeedBelow::tell(std::uint64_t bytes) {
  allocations_ = bytes;
  told_ = std::max(bytes, lacking());
  return core_.abilities.spill.growing->need(told_);
}

bool NeedBelow::is_asking() const {
  return lack_.ticket != 0 && !core_.abilities.spill.growing->was_answered(lack_.ticket);
}

bool NeedBelow::may_look_for_copies() {
  const std::uint64_t now = core_.now_us();
  if (is_asking() && now < look_again_us_) return false;
  look_again_us_ = now + kLookAgainUs;
  return true;
}

bool NeedBelow::ask_for_room(std::uint64_t page_bytes) {
  if (core_.abilities.spill.growing == nullptr) return false;
  if (is_asking()) return true;
  const tiers::TierUsage usage = core_.config.spill->usage();
  const std::uint64_t now = core_.now_us();
  if (now < lack_.again_us && usage.budget_bytes <= lack_.budget_bytes) return false;
  lack_ = {.ticket = 0,
           .bytes = usage.used_bytes + std::max(kLackingPages * page_bytes, usage.used_bytes / 8),
           .until_us = now + kLackingUs,
           .budget_bytes = usage.budget_bytes,
           .again_us = now + kAskAgainUs};
  lack_.ticket = tell(allocations_);
  return true;
}

}  // namespace vmem::migration
