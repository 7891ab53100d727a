// The blocks of one size class on one device that no thread cache holds: free in their slabs, or
// waiting for the stream that they were freed on. A waiting block serves its own stream at once.
// When its batch's mark is complete, it returns to its slab.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/suballocator.hpp"
#include "runtime/suballocator/block_map.hpp"
#include "runtime/suballocator/slab.hpp"

namespace vmem::runtime {

// The work that a freed block waits for. Work of equal origins is ordered.
struct Origin {
  StreamId stream;
  std::uint64_t thread = 0;  // for CU_STREAM_PER_THREAD: the thread's number, never reused; else 0
  std::uint64_t ended = 0;   // a closed stream's unique number, so that no later stream equals it
  bool operator==(const Origin&) const = default;
};

using Mark = std::optional<std::uint64_t>;  // nothing: StreamMarks failed to make one

class Depot {
 public:
  Depot(StreamMarks& marks, BlockMap& map) : marks_(marks), map_(map) {}

  // Fills `out` as far as possible without a new slab: with blocks that wait for `origin`, else
  // free blocks, else blocks whose marks are now complete. Appends slabs found wholly free to
  // `emptied`; the caller owns them from then on, here and in the other methods.
  std::size_t take(const Origin& origin, std::span<std::uintptr_t> out, std::vector<Slab*>& emptied);
  // Fills `out` from a new slab; the depot keeps the rest.
  std::size_t take_from(Slab& slab, std::span<std::uintptr_t> out);
  // Blocks freed on `origin`; `mark` covers their last use.
  void put(const Origin& origin, Mark mark, std::span<const std::uintptr_t> blocks, std::vector<Slab*>& emptied);
  // Returns all blocks with complete marks to their slabs.
  void settle(std::vector<Slab*>& emptied);
  bool holds(const Origin& origin) const;
  // Blocks that wait for `origin` now wait for `as`; batches without a mark get `mark`.
  void rename(const Origin& origin, const Origin& as, std::uint64_t mark);

  std::size_t waiting_bytes() const;  // of bookkeeping

 private:
  struct Batch {
    Mark mark;
    std::vector<std::uintptr_t> blocks;
  };
  struct Queue {
    Origin origin;
    std::deque<Batch> batches;  // in order of arrival: marks mostly grow
  };
  std::size_t take_waiting(const Origin& origin, std::span<std::uintptr_t> out);
  std::size_t take_free(std::span<std::uintptr_t> out);
  void settle_queues();
  void settle_some(Queue& queue, std::size_t most);
  bool complete(const Queue& queue, Batch& batch);
  void return_to_slabs(std::span<const std::uintptr_t> blocks);
  void collect_emptied(std::vector<Slab*>& emptied);
  Queue* find(const Origin& origin);

  StreamMarks& marks_;
  BlockMap& map_;

  mutable std::mutex mutex_;  // taken after a thread cache's mutex
  // Protected by mutex_.
  std::vector<Queue> queues_;
  std::map<std::uintptr_t, Slab*> with_free_;  // by address: low slabs fill up, high slabs empty
  std::vector<Slab*> maybe_empty_;
};

}  // namespace vmem::runtime
