// Registered memory of a transport: finds a slab of a span. Slabs may overlap: a page is sent to
// several nodes at the same time. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "rdma/transport/transport.hpp"

namespace vmem::rdma {

class SlabMap {
 public:
  using Handle = std::shared_ptr<void>;  // of the transport's library; null if it has none
  struct Entry {
    std::size_t bytes = 0;
    Handle handle;
  };
  using Slabs = std::multimap<std::uintptr_t, Entry>;  // by first address
  using Place = Slabs::const_iterator;

  // Errors: INVALID_VALUE for empty memory.
  Result<Place> add(ConstBytes memory, Handle handle);
  void remove(Place slab);
  // The handle of a slab that contains the whole span, which need not be the caller's own: who uses
  // it keeps it. Errors: INVALID_VALUE.
  Result<Handle> find(ConstBytes span) const;

 private:
  mutable std::mutex mutex_;
  Slabs slabs_;  // protected by mutex_
};

// Memory that is in the map until its end, and registered nowhere else.
class MappedSlab final : public Slab {
 public:
  MappedSlab(SlabMap& slabs, SlabMap::Place place, Bytes memory) : slabs_(slabs), place_(place), memory_(memory) {}
  ~MappedSlab() override { slabs_.remove(place_); }
  MappedSlab(const MappedSlab&) = delete;
  MappedSlab& operator=(const MappedSlab&) = delete;
  Bytes memory() const noexcept override { return memory_; }

 private:
  SlabMap& slabs_;
  SlabMap::Place place_;
  Bytes memory_;
};

}  // namespace vmem::rdma
