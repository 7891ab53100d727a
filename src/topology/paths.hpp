// The way that bytes take from one memory to another, and how fast, alone or beside others. Pure.
//
// A path passes through switches and roots, never through a memory: nothing here relays through one. Hardware routes by where
// the memory is and not by load, so the path is that of an idle machine: over NVLinks alone where they lead there, as the driver
// does it; otherwise, and where there are several, the widest, of these the shortest. Load only makes it slower: whoever has a
// choice chooses another memory (placement.hpp).
#pragma once

#include <array>
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
  NodeId from, to;
  std::vector<Step> steps;
};

// Copies under way, by link and direction.
class Load {
 public:
  void add(const Path& path);
  void remove(const Path& path);
  std::uint32_t on(Step step) const;

 private:
  std::uint32_t& at(Step step);
  std::vector<std::array<std::uint32_t, 2>> flows_;  // [link][forward]; those not listed are idle
};

// What one step gives to a copy that shares it evenly with the load, the load not including the copy; no value: no rate is known,
// and it is taken to limit nothing.
std::optional<double> step_rate(const Topology& topology, Step step, const Load& load = {});

// The narrowest step; where the copy was measured alone, no more than that. No value: no rate is known.
std::optional<double> path_rate(const Topology& topology, const Path& path, const Load& load = {});

// No value: nothing joins the two. From a memory to itself: a path without steps.
std::optional<Path> best_path(const Topology& topology, NodeId from, NodeId to);

}  // namespace vmem::topology
