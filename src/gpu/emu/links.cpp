#include "gpu/emu/links.hpp"

#include <ctime>

namespace vmem::emu {

Link::Clock::time_point Link::occupy(Clock::time_point start, std::size_t bytes, Clock::duration fixed) {
  Clock::duration length = fixed;
  if (gbps_ > 0) {
    const std::chrono::duration<double, std::nano> at_rate(static_cast<double>(bytes) /
                                                           gbps_);  // bytes per GB/s are ns
    length += std::chrono::duration_cast<Clock::duration>(at_rate);
  }
  const std::lock_guard lock(mutex_);
  busy_until_ = std::max(busy_until_, start) + length;
  return busy_until_;
}

void Link::extend(Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  busy_until_ = std::max(busy_until_, end);
}

// steady_clock is CLOCK_MONOTONIC.
void sleep_until(Link::Clock::time_point time) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  const timespec deadline{static_cast<time_t>(since_epoch / 1'000'000'000),
                          static_cast<long>(since_epoch % 1'000'000'000)};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, nullptr) != 0) {
  }
}

}  // namespace vmem::emu
