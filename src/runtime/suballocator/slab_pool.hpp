// The slabs of one device that no size class uses. A few are kept, whole and for any class, so that a program which frees and
// allocates the same few blocks does not go to the source each time: above kMostSpare slabs are given back until kKeptSpare are
// left.
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
  static constexpr std::size_t kMostSpare = 8;
  static constexpr std::size_t kKeptSpare = 4;

  SlabPool(SlabSource& source, BlockMap& map, int device) : source_(source), map_(map), device_(device) {}
  ~SlabPool();

  // A slab cut for the class. Errors: those of the source; before they are returned, spare slabs of other lengths are given
  // back and the source is asked again.
  Result<Slab*> take(std::uint32_t size_class);
  // Takes wholly free slabs in. Failures to give slabs back are logged: they are kept.
  void put(std::span<Slab* const> slabs);
  // Gives spare slabs back until `keep` are left. Errors: those of the source; the slab is kept.
  Status release(std::size_t keep);

  std::size_t granules() const noexcept { return granules_.load(std::memory_order_relaxed); }
  std::size_t descriptor_bytes() const;

 private:
  Slab* take_spare(std::uint32_t granules);
  Result<Slab*> make(std::uint32_t granules);
  Result<Slab*> adopt(std::uintptr_t base, std::uint32_t granules);
  Status give_back(Slab& slab);

  SlabSource& source_;
  BlockMap& map_;
  const int device_;
  std::atomic<std::size_t> granules_{0};

  mutable std::mutex mutex_;  // taken last; not held while the source is called
  // Protected by mutex_.
  std::vector<Slab*> spare_;
  std::vector<Slab*> unused_descriptors_;
  std::deque<Slab> descriptors_;  // base is 0 while unused
};

}  // namespace vmem::runtime
