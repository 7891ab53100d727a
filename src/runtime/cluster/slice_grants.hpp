// Adds slices of the cluster to the part of the address space that this node allocates in.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.hpp"
#include "cluster/enrollment/enrollment_events.hpp"

namespace vmem::runtime {

struct SliceGrants {
  std::uint32_t granules = 0;  // of a slice
  std::function<Result<std::vector<cluster::Slice>>(std::uint32_t count)> take;
  // False from before the node hears that it was expelled: what it hears of then is taken away.
  std::function<bool(cluster::Slice slice)> holds;
  // Of granules of the address space.
  std::function<Status(std::uint32_t first, std::uint32_t count)> grant;
  std::function<void(std::uint32_t first, std::uint32_t count)> retire;
};

// An expulsion between the taking and the granting is heard of too early: what this node does not
// hold any more is taken away here. Errors: those of take and grant; ADDRESS_SPACE, the node was
// expelled meanwhile.
Status grant_slices(const SliceGrants& grants, std::uint32_t count);

}  // namespace vmem::runtime
