// What was busy at which share of the time, in the later half of a trace's launches.
#pragma once

#include <cstdint>

#include "trace/file.hpp"

namespace vmem::tools {

// Nanoseconds. A copy lasts from its submission to the end that the mover saw; those between host
// memory and what is below it do not count.
struct Shares {
  std::uint64_t all = 0;  // between the middle launch and the last one
  std::uint64_t in = 0, out = 0, both = 0;
  std::uint64_t neither() const { return all - (in + out - both); }
  std::uint64_t mover = 0;    // busy
  std::uint64_t waiting = 0;  // at least one launch or acquire waited
};

Shares shares_of(const trace::Trace& trace);

}  // namespace vmem::tools
