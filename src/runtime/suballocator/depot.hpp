// The blocks of one size class on one device that no thread cache holds: free in their slabs for anyone, or waiting for the
// stream they were freed on. A block that waits serves its own stream at once; when the mark of its batch is complete it goes
// back to its slab.
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

// Whose work a freed block waits for. Equal origins are ordered among themselves.
struct Origin {
  StreamId stream;
  std::uint64_t thread = 0;  // of CU_STREAM_PER_THREAD: the thread, by a number that is not used again; else 0
  std::uint64_t ended = 0;   // the stream was closed: a number of its own, so that no later stream is taken for it
  bool operator==(const Origin&) const = default;
};

using Mark = std::optional<std::uint64_t>;  // nothing: the source failed to make one

class Depot {
 public:
  Depot(SlabSource& source, BlockMap& map) : source_(source), map_(map) {}

  // Fills `out` as far as it can without a new slab: what waits for `origin` itself, then what is free, then what has become so.
  // Slabs that turned out wholly free are appended to `emptied`, the caller's from then on; so in the others.
  std::size_t take(const Origin& origin, std::span<std::uintptr_t> out, std::vector<Slab*>& emptied);
  // Fills `out` from a new slab, and keeps the rest of it.
  std::size_t take_from(Slab& slab, std::span<std::uintptr_t> out);
  // Blocks freed on `origin`; `mark` covers their last use.
  void put(const Origin& origin, Mark mark, std::span<const std::uintptr_t> blocks, std::vector<Slab*>& emptied);
  // Returns every block whose mark is complete to its slab.
  void settle(std::vector<Slab*>& emptied);
  bool holds(const Origin& origin) const;
  // What waits for `origin` waits for `as` from now on; batches without a mark get `mark`.
  void rename(const Origin& origin, const Origin& as, std::uint64_t mark);

  std::size_t waiting_bytes() const;  // of bookkeeping

 private:
  struct Batch {
    Mark mark;
    std::vector<std::uintptr_t> blocks;
  };
  struct Queue {
    Origin origin;
    std::deque<Batch> batches;  // in the order they came: marks mostly grow
  };
  std::size_t take_waiting(const Origin& origin, std::span<std::uintptr_t> out);
  std::size_t take_free(std::span<std::uintptr_t> out);
  void settle_queues();
  void settle_some(Queue& queue, std::size_t most);
  bool complete(const Queue& queue, Batch& batch);
  void return_to_slabs(std::span<const std::uintptr_t> blocks);
  void collect_emptied(std::vector<Slab*>& emptied);
  Queue* find(const Origin& origin);

  SlabSource& source_;
  BlockMap& map_;

  mutable std::mutex mutex_;  // taken after a thread cache's mutex
  // Protected by mutex_.
  std::vector<Queue> queues_;
  std::map<std::uintptr_t, Slab*> with_free_;  // by address: the low ones fill up, the high ones become empty
  std::vector<Slab*> maybe_empty_;
};

}  // namespace vmem::runtime
