// Options of this module. How launches of programs that do not call vmem reach memory.
#pragma once

#include <cstdint>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct LaunchOptions {
  bool strict = false;  // --strict: on: a launch can access only the memory that it names
  // --drained: on: launches can access all memory; pages move while no launch is in flight
  bool drained = false;
  // --window: how many launches back a pointer table may have been filled
  std::uint32_t window = 64;
};

std::vector<Option<LaunchOptions>> launch_options();

}  // namespace vmem
