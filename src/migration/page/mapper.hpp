// Maps pages at their addresses. The only caller of the driver's mapping functions for them.
#pragma once

#include <cuda.h>

#include "base/status.hpp"
#include "migration/core.hpp"

namespace vmem::migration {

using pagetable::Access;

class Mapper {
 public:
  explicit Mapper(Core& core) : core_(core) {}

  // Makes the page accessible to the region's devices. Errors: the driver's.
  Status map(PageRef ref, CUmemGenericAllocationHandle handle, Access access);
  Status unmap(PageRef ref);
  // REQUIRES: mapped. Opens the page to all devices that the region now names.
  Status set_access(PageRef ref, Access access);
  // Whether mappings allow only the requested access, so that no undeclared write is possible. Not
  // for slabs: one mapping serves small allocations that are read and that are written.
  bool write_protected(const Region& region) const {
    return region.read_only || region.frozen() || (core_.config.protect && !region.slab);
  }

 private:
  Core& core_;
};

}  // namespace vmem::migration
