// The registered memory of a transport: whether a span lies in a slab, and in which. Any thread.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "rdma/transport.hpp"

namespace vmem::rdma {

class SlabMap {
 public:
  // Errors: INVALID_VALUE for memory that is none or overlaps a slab.
  Status add(ConstBytes memory, void* handle);
  void remove(ConstBytes memory);
  // The handle of the slab that the whole span lies in. Errors: INVALID_VALUE.
  Result<void*> find(ConstBytes span) const;

 private:
  struct Entry {
    std::size_t bytes = 0;
    void* handle = nullptr;
  };
  mutable std::mutex mutex_;
  std::map<std::uintptr_t, Entry> slabs_;  // by first address; protected by mutex_
};

}  // namespace vmem::rdma
