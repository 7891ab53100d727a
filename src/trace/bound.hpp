// What any schedule of a program has to move and how long it takes at least, with so much HBM. The
// arguments are in docs/internals/trace.md.
#pragma once

#include <cstdint>
#include <vector>

#include "trace/program.hpp"

namespace vmem::trace {

struct Machine {
  std::uint64_t hbm_bytes = 0;
  double in_bytes_per_s = 0, out_bytes_per_s = 0;  // both at the same time
};

// The time of a transfer; 0 for an unknown rate.
std::uint64_t link_ns(std::uint64_t bytes, double bytes_per_s);

struct Moved {
  std::uint64_t in_bytes = 0, out_bytes = 0;
};

// Least bytes of the launches [first, end), for any contents of HBM before. Each of the two holds
// alone: no schedule need reach both at once. REQUIRES: no launch needs more than hbm_bytes.
Moved least_moved(const Program& program, Position first, Position end, std::uint64_t hbm_bytes);

struct Bound {
  Moved moved;                   // of the whole program
  std::uint64_t compute_ns = 0;  // of the stream that computes longest
  std::uint64_t time_ns = 0;     // sum of the phases' bounds
  struct Phase {
    Position first = 0, end = 0;
    std::uint64_t compute_ns = 0, in_ns = 0, out_ns = 0;
    std::uint64_t least_ns() const;
  };
  std::vector<Phase> phases;
};

// Divides the launches into phases so that the sum of their bounds is as large as it gets with at
// most `cuts` places to divide at. REQUIRES: as above.
Bound bound(const Program& program, const Machine& machine, std::uint32_t cuts = 24);

}  // namespace vmem::trace
