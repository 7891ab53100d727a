// Registered memory of a transport: finds the slab of a span. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class SlabMap {
 public:
  // Errors: INVALID_VALUE for empty memory or an overlap with a slab.
  Status add(ConstBytes memory, void* handle);
  void remove(ConstBytes memory);
  // The handle of the slab that contains the whole span. Errors: INVALID_VALUE.
  Result<void*> find(ConstBytes span) const;

 private:
  struct Entry {
    std::size_t bytes = 0;
    void* handle = nullptr;
  };
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Entry> slabs_;  // by first address; protected by mutex_
};

// Memory that is in the map until its end, and registered nowhere else.
class MappedSlab final : public Slab {
 public:
  // REQUIRES: the memory is in the map.
  MappedSlab(SlabMap& slabs, Bytes memory) : slabs_(slabs), memory_(memory) {}
  ~MappedSlab() override { slabs_.remove(memory_); }
  MappedSlab(const MappedSlab&) = delete;
  MappedSlab& operator=(const MappedSlab&) = delete;
  Bytes memory() const noexcept override { return memory_; }

 private:
  SlabMap& slabs_;
  Bytes memory_;
};

}  // namespace vmem::rdma
