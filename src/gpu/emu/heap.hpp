// cuMemAlloc memory of one context. Large allocations have their own frames; small ones share 2 MiB
// slabs. A stream-ordered free caches the memory for later stream-ordered allocations of similar
// size. As in the default pool, synchronisation or lack of memory empties the cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "gpu/emu/cuda_api.hpp"

namespace vmem::emu {

class Device;

class Heap {
 public:
  explicit Heap(Device& device) : device_(device) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  CUresult allocate(std::size_t bytes, std::uint64_t& address);
  CUresult free(std::uint64_t address);

  CUresult allocate_cached(std::size_t bytes, std::uint64_t& address);
  // A stream-ordered free: begin_free at the call, finish_free when the stream reaches it.
  CUresult begin_free(std::uint64_t address);
  void finish_free(std::uint64_t address);

  struct Range {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    bool synchronizes = false;
  };
  // The live allocation (or one being freed) that contains the address; 0 bytes if none.
  Range find(std::uint64_t address) const;
  // If set, synchronous calls on the allocation wait for its bytes, even between device memories.
  // False: no such allocation.
  bool set_synchronizes(std::uint64_t address, bool value);

  // Frees cached memory; false if there was none.
  bool trim();
  void clear();

 private:
  enum class State { live, being_freed, cached };
  struct Allocation {
    std::size_t bytes;   // rounded
    std::uint64_t slab;  // 0: not in a slab
    State state;
    bool synchronizes = false;
  };
  using FreeRanges = std::map<std::uint64_t, std::size_t>;

  // All REQUIRE mutex_.
  CUresult allocate_locked(std::size_t rounded, std::uint64_t& address);
  CUresult allocate_small(std::size_t rounded, std::uint64_t& address);
  bool take_from_slabs(std::size_t rounded, std::uint64_t& address);
  CUresult map_memory(std::size_t bytes, std::uint64_t& address);
  void unmap_memory(std::uint64_t address, std::size_t bytes);
  void erase(std::map<std::uint64_t, Allocation>::iterator allocation);
  std::map<std::uint64_t, Allocation>::const_iterator live_at(std::uint64_t address) const;
  bool trim_locked();

  Device& device_;
  mutable std::mutex mutex_;  // taken before the address space's
  std::map<std::uint64_t, Allocation> allocations_;
  std::map<std::uint64_t, FreeRanges> slabs_;
  std::multimap<std::size_t, std::uint64_t> cached_;
  std::atomic<bool> has_cached_{false};  // a hint, to keep synchronisation cheap
};

}  // namespace vmem::emu
