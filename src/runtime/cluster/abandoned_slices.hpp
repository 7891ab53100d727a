// Slices of the address space that nodes have left behind: their node is no member any more, as
// after a crash, and no region lives there that a member takes part in.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/cluster/member.hpp"

namespace vmem::runtime {

struct AbandonedSlice {
  cluster::Slice slice{};
  NodeId from{};
};

// Finds such slices and ends the regions there: erases their records and names, so that nobody can
// open them afterwards. Such a region has no page left, but it may have a home, where a node may
// open it until then; a slice of a region that was opened meanwhile is left out.
//
// The slices may be taken over: a node that is no member publishes nothing any more, so what is not
// in the registry after its record has gone never comes there. Errors: those of RegistryClient, if
// no slice was found.
Result<std::vector<AbandonedSlice>> clear_abandoned_slices(const RegistryAccess& access,
                                                           const cluster::ClusterParameters& parameters,
                                                           std::uint64_t most_us);

}  // namespace vmem::runtime
