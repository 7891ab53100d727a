// A cache of frames with time. Uses take time, a link brings one page after another with a latency,
// and a use of an absent page waits. Like a mover, it never evicts a page used a moment ago,
// because the GPU may still be using it.
#pragma once

#include <cstdint>

#include "migration/policy/policy.hpp"
#include "migration/policy/traces.hpp"

namespace vmem::migration::testing {

struct Machine {
  std::uint32_t frames = 64;
  bool distant = false;      // the link leads to a disk or another node
  double work_time = 1;      // per use
  double transfer_time = 1;  // per page on the link
  double latency = 4;        // from the request to the arrival, in addition
  std::uint32_t in_flight_max = 16;
  std::uint32_t busy_pages = 2;  // number of latest uses whose pages are refused as victims
  std::uint32_t drop_every = 0;  // the mover drops every n-th prefetch; 0: none
  std::size_t warm_up = 0;       // number of references before waits are counted
};

struct Timing {
  std::uint64_t waits = 0;
  double waited = 0;
  double time = 0;
  std::uint64_t prefetched = 0;
  std::uint64_t fetched = 0;       // all pages
  std::uint64_t wasted = 0;        // prefetched and evicted unused
  std::uint64_t asked_in_hbm = 0;  // prefetches of resident pages: each a mistake of the policy
  std::uint64_t asked_in_flight = 0;
};

Timing simulate(Policy& policy, const Trace& trace, const Machine& machine);

}  // namespace vmem::migration::testing
