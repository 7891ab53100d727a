// Daemons of this host whose HBM this program can map, as their cluster's registry says, and which
// of them take its pages before its own host memory does. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "runtime/cluster/member.hpp"
#include "topology/topology.hpp"

namespace vmem::runtime {

struct FoundLender {
  NodeId node{};
  cluster::MappedHbm hbm;
  bool operator==(const FoundLender&) const = default;
};
// Of the nodes on the host with this boot id, in the order of their ids; "": the id is unknown, and
// so are they.
std::vector<FoundLender> lenders_on_host(const ClusterView& view, std::string_view boot);

// A GPU that the driver shows this program.
struct VisibleGpu {
  int ordinal = 0;
  std::string uuid;              // as gpu::format_uuid
  std::uint32_t reached_by = 0;  // bit i: the program's device i can map its memory
};

struct LenderUse {
  int ordinal = 0;            // of the GPU that is lent
  std::uint32_t used_by = 0;  // bit i: it takes pages of the program's device i before host memory
};
// `devices`: ordinals of those that the program uses. Errors: UNSUPPORTED, with the reason why no
// page goes there, and what would change that.
Result<LenderUse> use_of(const FoundLender& lender, std::span<const VisibleGpu> visible, std::span<const int> devices,
                         const topology::Topology& topology);

}  // namespace vmem::runtime
