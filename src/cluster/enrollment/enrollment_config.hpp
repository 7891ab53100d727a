// The times of enrollment, and the randomness that it is given.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "base/status.hpp"

namespace vmem::cluster {

using Random = std::function<std::uint64_t()>;

struct EnrollmentConfig {
  std::uint32_t lease_s = 90;
  std::uint64_t renew_us = 15'000'000;
  std::uint64_t renew_again_us = 3'000'000;  // while the last renewal has no good answer
  // A node fences itself this long after the last good renewal was sent, less the drift: the most
  // that its clock and the registry's may differ in speed.
  std::uint64_t fence_us = 85'000'000;
  std::uint32_t drift_percent = 2;
  std::uint64_t poll_us = 1'000'000;
  std::uint64_t first_backoff_us = 20'000, most_backoff_us = 2'000'000;
  std::uint64_t request_us = 15'000'000;  // deadline of take_serial, take_slices
  std::uint64_t leave_us = 10'000'000;    // deadline of leave

  // The same proportions for another lease.
  static EnrollmentConfig of_lease(std::uint32_t seconds);
  std::uint64_t fenced_after_us() const noexcept { return fence_us - fence_us / 100 * drift_percent; }
  // Errors: INVALID_OPTION if the fence could come after the end of the lease, or before a renewal.
  Status check() const;
};

// Waits between attempts: random, and twice as long each time.
class Backoff {
 public:
  Backoff(const EnrollmentConfig& config, const Random& random)
      : first_us_(config.first_backoff_us), most_us_(config.most_backoff_us), next_us_(first_us_), random_(random) {}

  void reset() noexcept { next_us_ = first_us_; }
  std::uint64_t next_us() {
    const std::uint64_t wait_us = next_us_ / 2 + random_() % (next_us_ / 2 + 1);
    next_us_ = std::min(2 * next_us_, most_us_);
    return wait_us;
  }

 private:
  const std::uint64_t first_us_, most_us_;
  std::uint64_t next_us_;
  const Random& random_;
};

}  // namespace vmem::cluster
