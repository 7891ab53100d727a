// State shared by all threads: per device, a pool of slabs and one depot per size class.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "runtime/suballocator.hpp"
#include "runtime/suballocator/block_map.hpp"
#include "runtime/suballocator/depot.hpp"
#include "runtime/suballocator/slab_pool.hpp"

namespace vmem::runtime {

class Central {
 public:
  Central(SlabSource& source, StreamMarks& marks, std::uintptr_t base, std::size_t bytes)
      : source_(source), marks_(marks), map_(base, bytes) {}
  Status reserve_tables() { return map_.reserve_tables(); }

  BlockMap& map() noexcept { return map_; }
  const BlockMap& map() const noexcept { return map_; }

  // Takes at least one block that work on `origin` may use. Errors: those of the source.
  Result<std::size_t> take(int device, std::uint32_t size_class, const Origin& origin, std::span<std::uintptr_t> out);
  // Like take, but never asks the source; may return 0.
  std::size_t take_present(int device, std::uint32_t size_class, const Origin& origin, std::span<std::uintptr_t> out);
  void put(int device, std::uint32_t size_class, const Origin& origin, Mark mark,
           std::span<const std::uintptr_t> blocks);
  // In every depot: frees the blocks whose marks are complete.
  void settle();
  // True if a block in any depot waits for `origin`.
  bool holds(const Origin& origin) const;
  // In every depot: `origin` has ended, and `mark` covers all its work.
  void end(const Origin& origin, const Origin& as, std::uint64_t mark);
  // Gives all spare slabs back. Tries every device; returns the first error.
  Status release_spare();

  std::size_t slab_bytes() const;
  std::size_t metadata_bytes() const;

 private:
  struct Device {
    Device(SlabSource& source, StreamMarks& marks, BlockMap& map, int device);
    SlabPool pool;
    std::deque<Depot> depots;  // one per class; never moved
  };
  Device& device(int index);
  template <class Act>
  void for_each_device(Act act) const;

  SlabSource& source_;
  StreamMarks& marks_;
  BlockMap map_;
  // Each entry is set once, under mutex_.
  std::array<std::atomic<Device*>, Suballocator::kMaxDevices> devices_{};
  std::mutex mutex_;
  std::vector<std::unique_ptr<Device>> storage_;
};

}  // namespace vmem::runtime
