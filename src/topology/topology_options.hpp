// Options of this module. Where the machine's measured links are kept.
#pragma once

#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct TopologyOptions {
  std::string topology = "auto";  // --topology: auto, off, or a file written by `vmem topo`
};

std::vector<Option<TopologyOptions>> topology_options();

}  // namespace vmem
