// A node's clock: it began at some time of its own, and runs too fast or too slow.
#pragma once

#include <cstdint>
#include <random>

#include "base/clock.hpp"

namespace vmem::test {

class DriftingClock final : public Clock {
 public:
  // Of any().
  static constexpr std::int64_t kMostPpm = 10'000;
  static constexpr std::uint64_t kMostBeganUs = 3'600'000'000;

  // drift_ppm 10'000: 1 % too fast
  DriftingClock(const Clock& time, std::int64_t drift_ppm, std::uint64_t began_us = 1)
      : time_(time), speed_(static_cast<std::uint64_t>(kMillion + drift_ppm)), began_us_(began_us) {}
  static DriftingClock any(const Clock& time, std::mt19937_64& random) {
    const auto drift = static_cast<std::int64_t>(random() % (2 * kMostPpm + 1)) - kMostPpm;
    return {time, drift, 1 + random() % kMostBeganUs};
  }

  std::uint64_t now_us() const noexcept override { return began_us_ + time_.now_us() * speed_ / kMillion; }
  // The first time at which the clock shows at least this.
  std::uint64_t virtual_us(std::uint64_t shown_us) const noexcept {
    if (shown_us <= began_us_) return 0;
    return ((shown_us - began_us_) * kMillion + speed_ - 1) / speed_;
  }

 private:
  static constexpr std::int64_t kMillion = 1'000'000;
  const Clock& time_;
  const std::uint64_t speed_, began_us_;
};

}  // namespace vmem::test
