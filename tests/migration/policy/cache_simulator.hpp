// A cache of frames without time: counts a trace's hits under a policy and classic algorithms.
#pragma once

#include <cstdint>

#include "migration/policy/policy.hpp"
#include "migration/policy/traces.hpp"

namespace vmem::migration::testing {

inline constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;

// Whether a use is reported before its page arrives (at acquire) or after (at release).
enum class Report { before_arrival, after_arrival };

std::uint64_t policy_hits(Policy& policy, const Trace& trace, std::uint32_t frames,
                          Report report = Report::before_arrival);
std::uint64_t lru_hits(const Trace& trace, std::uint32_t frames);
std::uint64_t clock_hits(const Trace& trace, std::uint32_t frames);
std::uint64_t belady_hits(const Trace& trace, std::uint32_t frames);

}  // namespace vmem::migration::testing
