#include "cluster/enrollment/enrollment_config.hpp"

#include <fmt/format.h>

#include "base/sizes.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

}  // namespace

EnrollmentConfig EnrollmentConfig::of_lease(std::uint32_t seconds) {
  const EnrollmentConfig usual;
  const auto scaled = [&](std::uint64_t us) { return us * seconds / usual.lease_s; };
  EnrollmentConfig config;
  config.lease_s = seconds;
  config.renew_us = scaled(usual.renew_us);
  config.renew_again_us = scaled(usual.renew_again_us);
  config.fence_us = scaled(usual.fence_us);
  return config;
}

Status EnrollmentConfig::check() const {
  const bool ordered = renew_again_us != 0 && renew_us != 0 && renew_us + renew_again_us < fenced_after_us() &&
                       fence_us <= lease_s * kSecondUs && drift_percent < 100;
  if (ordered && poll_us != 0 && first_backoff_us != 0) return {};
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("a lease of {} s, renewed every {}, with a fence after {} less {} %: the fence has to come "
                          "after a renewal and before the end of the lease",
                          lease_s, exact_duration_us(renew_us), exact_duration_us(fence_us), drift_percent));
}

}  // namespace vmem::cluster
