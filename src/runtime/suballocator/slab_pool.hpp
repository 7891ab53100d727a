// The slabs of one device that no size class uses. Some stay spare, for any class, so that a
// program that frees and allocates the same blocks in each step does not call the source each time.
// Above SlabSource::spare_bytes, slabs are given back until half of that is left.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "runtime/suballocator.hpp"
#include "runtime/suballocator/block_map.hpp"
#include "runtime/suballocator/slab.hpp"

namespace vmem::runtime {

class SlabPool {
 public:
  SlabPool(SlabSource& source, BlockMap& map, int device)
      : source_(source), map_(map), device_(device), most_spare_(source.spare_bytes(device) / kGranuleBytes) {}
  ~SlabPool();

  // A slab cut for the class. Errors: those of the source, after a second attempt with all spare
  // slabs given back.
  Result<Slab*> take(std::uint32_t size_class);
  // Takes in wholly free slabs. Logs slabs that could not be given back; they stay spare.
  void put(std::span<Slab* const> slabs);
  // Gives spare slabs back until at most `keep` granules are left. Errors: those of the source; the
  // slab stays spare.
  Status release(std::size_t keep);

  std::size_t granules() const noexcept { return granules_.load(std::memory_order_relaxed); }
  std::size_t descriptor_bytes() const;

 private:
  Slab* take_spare(std::uint32_t granules);
  void add_spare(Slab& slab);  // REQUIRES: mutex_ held
  Result<Slab*> make(std::uint32_t granules);
  Result<Slab*> adopt(std::uintptr_t base, std::uint32_t granules);
  Status give_back(Slab& slab);

  SlabSource& source_;
  BlockMap& map_;
  const int device_;
  const std::size_t most_spare_;  // granules
  std::atomic<std::size_t> granules_{0};

  mutable std::mutex mutex_;  // taken last; not held while the source is called
  // Protected by mutex_.
  std::vector<Slab*> spare_;
  std::size_t spare_granules_ = 0;
  std::vector<Slab*> unused_descriptors_;
  std::deque<Slab> descriptors_;  // base is 0 while unused
};

}  // namespace vmem::runtime
