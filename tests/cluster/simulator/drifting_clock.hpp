// A node's clock: it began at some time of its own, and runs too fast or too slow.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "cluster/simulator/event_queue.hpp"

namespace vmem::cluster::simulator {

class DriftingClock final : public Clock {
 public:
  // drift_ppm 10'000: 1 % too fast
  DriftingClock(const EventQueue& queue, std::int64_t drift_ppm, std::uint64_t began_us = 1)
      : queue_(queue), speed_(static_cast<std::uint64_t>(kMillion + drift_ppm)), began_us_(began_us) {}

  std::uint64_t now_us() const noexcept override { return began_us_ + queue_.now_us() * speed_ / kMillion; }
  // The first virtual time at which the clock shows at least this.
  std::uint64_t virtual_us(std::uint64_t shown_us) const noexcept {
    if (shown_us <= began_us_) return 0;
    return ((shown_us - began_us_) * kMillion + speed_ - 1) / speed_;
  }

 private:
  static constexpr std::int64_t kMillion = 1'000'000;
  const EventQueue& queue_;
  const std::uint64_t speed_, began_us_;
};

}  // namespace vmem::cluster::simulator
