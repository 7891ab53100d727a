// cuMemAlloc memory of one context. Large allocations have frames of their own; small ones share 2 MiB slabs.
// Stream-ordered frees keep the memory cached for later stream-ordered allocations of about the same size, until
// somebody synchronises or memory runs out, as the default pool does.
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
  // A stream-ordered free: announced when it is called, carried out when its turn on the stream comes.
  CUresult begin_free(std::uint64_t address);
  void finish_free(std::uint64_t address);

  struct Range {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;
    bool synchronizes = false;
  };
  Range find(std::uint64_t address) const;  // the live allocation that holds the address; 0 bytes if none
  // Synchronous calls that work on the allocation wait for its bytes, even between device memories. False: there is none.
  bool set_synchronizes(std::uint64_t address, bool value);

  // Gives cached memory back; false if there was none.
  bool trim();
  void clear();

 private:
  enum class State { live, being_freed, cached };
  struct Allocation {
    std::size_t bytes;   // rounded
    std::uint64_t slab;  // 0: memory of its own
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
  mutable std::mutex mutex_;  // before the address space's
  std::map<std::uint64_t, Allocation> allocations_;
  std::map<std::uint64_t, FreeRanges> slabs_;
  std::multimap<std::size_t, std::uint64_t> cached_;
  std::atomic<bool> has_cached_{false};  // a hint that keeps synchronising cheap
};

}  // namespace vmem::emu
