// What a recorded program takes on other machines: replays of its steady part, beside what any
// runtime has to move and what a schedule that knows the future takes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "replay/replay.hpp"
#include "trace/bound.hpp"
#include "trace/file.hpp"
#include "trace/schedule.hpp"
#include "trace/steady.hpp"

namespace vmem::replay {

struct PlanRequest {
  std::vector<std::uint64_t> hbm_bytes;  // empty: kOverflows
  // The smallest HBM is sought whose steps take at most so much longer than where all fits, as a
  // part of that; nullopt: none is sought.
  std::optional<double> within;
  Chain chain;
  std::optional<std::uint64_t> page_bytes;
};
// Parts of the peak that HBM holds, without other wishes.
inline constexpr double kOverflows[] = {1.25, 1.5, 2, 3, 4};

// Times and bytes are of all periods of the steady part.
struct PlanRow {
  std::uint64_t hbm_bytes = 0;
  Measured measured;
  // Bytes are those that HBM cannot hold. Times are the longest of all links', each with what the
  // memory before it cannot hold.
  trace::Bound bound;
  trace::Schedule schedule;  // if all uses write
};

struct Plan {
  trace::Steady steady;
  std::uint64_t largest_launch_bytes = 0;
  Measured fits;              // where all fits
  std::vector<PlanRow> rows;  // from much HBM to little
  std::optional<std::uint64_t> smallest_hbm_bytes;
};

// What keeps the busiest part of the machine busy: "computing", "link in", "link out", "peer in",
// "peer out", "below in", "below out" or "mover".
std::string_view limit_of(const Measured& measured);
// For how much of the time: up to 1.
double busiest_part(const Measured& measured);

// Errors: those of replay; INVALID_VALUE (less HBM than the largest launch, small allocations and
// pages need; no launches, or none with a time; impossible sizes).
Result<Plan> plan(const trace::Trace& trace, const PlanRequest& request);

}  // namespace vmem::replay
