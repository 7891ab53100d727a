// A schedule that a runtime which knows the future could follow. A lower bound says what nothing
// can beat; this says what is possible.
#pragma once

#include <cstdint>

#include "trace/bound.hpp"
#include "trace/program.hpp"

namespace vmem::trace {

// Which uses change contents that were clean. A trace of a program that does not declare writes
// does not say.
enum class Writes : std::uint8_t {
  declared,  // those that the program says, and each item's first use
  all,
};

struct Schedule {
  std::uint64_t time_ns = 0;
  std::uint64_t waited_ns = 0;  // the GPU, for memory
  Moved moved;
};

// Launches run one after the other, in order. What a launch lacks comes in before it, over one
// link, in order. Room is made by items whose next use is farthest; those that changed go out over
// the other link. Tries several rules for how recent a victim's last use may be, and returns the
// fastest. REQUIRES: no launch needs more than the machine's HBM.
Schedule schedule(const Program& program, const Machine& machine, Writes writes);

}  // namespace vmem::trace
