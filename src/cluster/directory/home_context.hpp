// What every part of a home is given: its node, the others, and the times.
#pragma once

#include <functional>

#include "cluster/directory/directory_config.hpp"
#include "cluster/directory/region_index.hpp"

namespace vmem::cluster::directory {

// Outlives the homes of one membership.
struct HomeContext {
  NodeId self{};
  Revision self_record{};  // of nodes/ID
  const NodesView& view;
  const RegionIndex& index;
  const DirectoryConfig& config;
  const Random& random;
  bool is_member() const noexcept { return self != NodeId{}; }
  std::function<bool()> fenced;
  std::function<std::uint64_t()> unix_s;
};

}  // namespace vmem::cluster::directory
