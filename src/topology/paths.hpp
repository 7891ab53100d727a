// The path of a copy from one memory to another, and its rate. Pure.
//
// A path passes through switches and roots, never through a memory: vmem relays through no memory.
// Hardware routes by address, not by load, so the path is that of an idle machine. Paths use
// NVLinks alone where possible, as the driver does; otherwise the widest path, among these the
// shortest.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "topology/topology.hpp"

namespace vmem::topology {

struct Step {
  std::uint32_t link = 0;  // an index into Topology::links
  bool forward = true;     // from the link's a to its b
  bool operator==(const Step&) const = default;
};

struct Path {
  NodeIndex from, to;
  std::vector<Step> steps;
};

// The rate of one step for a copy alone. No value: the rate is unknown, and counts as no limit.
std::optional<double> step_rate(const Topology& topology, Step step);

// The rate of the narrowest step, and at most the rate measured for the copy alone. No value: no
// rate is known.
std::optional<double> path_rate(const Topology& topology, const Path& path);

// No value: the two are not connected. From a memory to itself: a path without steps.
std::optional<Path> best_path(const Topology& topology, NodeIndex from, NodeIndex to);

}  // namespace vmem::topology
