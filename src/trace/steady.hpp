// The part of a trace in which the program repeats itself: what a step takes once it has warmed up.
#pragma once

#include <cstdint>

#include "trace/file.hpp"

namespace vmem::trace {

struct Steady {
  std::uint64_t from_ns = 0;  // of its first launch
  // In it, equal to each other. 0: no part repeats, and it is the trace's last third.
  std::uint32_t periods = 0;
  std::uint64_t launches = 0;    // of a period; without periods, of the part
  std::uint64_t peak_bytes = 0;  // most that lived at a time in it, slabs included
};

// The trace's last two periods. A period is the shortest sequence of launches, by what they run and
// how many blocks they name, that repeats to the trace's end and fills its last third. One launch
// in fifty may differ; a longer one that clearly fits better is preferred. REQUIRES: the events are
// in order.
Steady steady_part(const Trace& trace);

// The most that lived at a time in the whole trace; of slabs alone.
std::uint64_t peak_bytes(const Trace& trace);
std::uint64_t peak_slab_bytes(const Trace& trace);

}  // namespace vmem::trace
