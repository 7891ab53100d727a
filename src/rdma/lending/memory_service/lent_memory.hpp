// The memory of a lease: extents of the lent memory, and which of their bytes were written. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "rdma/lending/extents.hpp"

namespace vmem::rdma {

class LentMemory {
 public:
  // REQUIRES: the lease does not have it. Nothing was written there.
  void add(Extent extent) { extents_.give_back(extent); }
  // Returns what of it was written. REQUIRES: contains().
  std::vector<Extent> remove(Extent extent);

  bool contains(Extent extent) const noexcept { return extents_.contains(extent); }
  const Extents& extents() const noexcept { return extents_; }
  std::uint64_t bytes() const noexcept { return extents_.free_bytes(); }
  // Is written to.
  void touch(Extent extent);

 private:
  Extents extents_, written_;
};

}  // namespace vmem::rdma
