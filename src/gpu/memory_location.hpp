// Makes CUmemLocation values. Members are assigned by name: in some releases of cuda.h `id` is a
// direct member, in others a member of an anonymous union.
#pragma once

#include <cuda.h>

namespace vmem::gpu {

inline CUmemLocation memory_location(CUmemLocationType type, int id) {
  CUmemLocation location{};
  location.type = type;
  location.id = id;
  return location;
}
inline CUmemLocation on_device(int ordinal) { return memory_location(CU_MEM_LOCATION_TYPE_DEVICE, ordinal); }
inline CUmemLocation on_host(int numa_node) { return memory_location(CU_MEM_LOCATION_TYPE_HOST_NUMA, numa_node); }

}  // namespace vmem::gpu
