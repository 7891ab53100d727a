// Frees and reuses undeclared allocations with a region of their own: sets the region's `dead`
// flag, and keeps the region in the BlockCache until it is reused or ended.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.hpp"
#include "runtime/memory/block_cache.hpp"
#include "runtime/memory/life_log.hpp"
#include "runtime/memory/regions.hpp"

namespace vmem::runtime {

// Any thread.
class FreedBlocks {
 public:
  FreedBlocks(StreamMarks& marks, Regions& regions, MoveGate& gate, LifeLog& lives, std::size_t devices)
      : cache_(marks, devices), regions_(regions), gate_(gate), lives_(lives), devices_(devices) {}

  // A region, no longer dead, with pages for exactly `bytes`, or null. Errors: those of
  // Regions::make_accessible_if_drained; the block then stays cached.
  Result<pagetable::Region*> take(int device, std::uint64_t bytes, const StreamId& stream);
  // False: another thread has freed the region. `stream`, `others`: as in BlockCache::put.
  bool put(pagetable::Region& region, const std::optional<StreamId>& stream, std::vector<std::uint64_t> others);
  // Ends the oldest blocks until at most `most` bytes remain on the device, except blocks that a
  // launch may still use: those stay cached. Stops at the first error.
  Status shrink(int device, std::uint64_t most);
  // Ends all blocks of all devices, with the same exception.
  Status clear();
  std::uint64_t bytes(int device) const { return cache_.bytes(device); }
  Status close_stream(const StreamId& stream) { return cache_.close_stream(stream); }

 private:
  bool set_dead(pagetable::Region& region, bool dead);

  BlockCache cache_;
  Regions& regions_;
  MoveGate& gate_;
  LifeLog& lives_;
  const std::size_t devices_;
};

}  // namespace vmem::runtime
