// Finds out which direction's copies hold up the driver's page table updates: that differs between
// machines. Copies in that direction then make way (tiers::YieldingTier). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "tiers/tier.hpp"

namespace vmem::migration {

class HeldUpCalls {
 public:
  // A page was made accessible beside copies from (`loads`) or to (`stores`) host memory. Returns
  // the direction that has to make way, if it is not the one that does already. Copies that make
  // way do not hold up for a time slice, so only the others tell.
  std::optional<tiers::Direction> took(std::uint64_t took_us, bool loads, bool stores) {
    if (!(yields_ == tiers::Direction::store ? loads : stores)) return std::nullopt;
    held_up_ += took_us >= kHeldUpUs && took_us <= kLongestUs ? 1 : 0;
    if (++calls_ < kCalls) return std::nullopt;
    const std::uint32_t held_up = std::exchange(held_up_, 0);
    calls_ = 0;
    if (held_up < kMost) return std::nullopt;
    yields_ = yields_ == tiers::Direction::store ? tiers::Direction::load : tiers::Direction::store;
    return yields_;
  }

 private:
  // A time slice of a copy engine is 1 ms. What takes longer waits for something else, mostly for
  // the driver's lock while it creates host memory.
  static constexpr std::uint64_t kHeldUpUs = 400, kLongestUs = 2'500;
  static constexpr std::uint32_t kCalls = 16, kMost = 12;

  tiers::Direction yields_ = tiers::Direction::store;
  std::uint32_t calls_ = 0, held_up_ = 0;
};

}  // namespace vmem::migration
