#include "rdma/lending/memory_service/lent_memory.hpp"

namespace vmem::rdma {

void LentMemory::touch(Extent extent) {
  for (const Extent& each : written_.missing_of(extent)) written_.give_back(each);
}

std::vector<Extent> LentMemory::remove(Extent extent) {
  extents_.take_at(extent);
  Extents clean;
  for (const Extent& each : written_.missing_of(extent)) clean.give_back(each);
  std::vector<Extent> dirty = clean.missing_of(extent);
  for (const Extent& each : dirty) written_.take_at(each);
  return dirty;
}

}  // namespace vmem::rdma
