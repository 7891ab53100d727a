// Freed undeclared allocations, cached for the next allocation of the same size, since programs may
// allocate thousands of result buffers a second. A block freed on a stream serves that stream at
// once, and any other stream once the work queued before the free is complete. Cached blocks are
// dead: the mover evicts their pages first and does not copy them out.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "pagetable/region.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

// Every method may be called from any thread.
class BlockCache {
 public:
  explicit BlockCache(StreamMarks& marks) : marks_(marks) {}

  // A block with pages for exactly `bytes`, or null.
  pagetable::Region* take(int device, std::uint64_t bytes, const StreamId& stream);
  // `stream`: the stream that orders the free; nothing: all work that used the block is complete.
  // `others`: marks of further streams that used the block. std::bad_alloc: nothing has changed.
  void put(pagetable::Region& region, const std::optional<StreamId>& stream, std::vector<std::uint64_t> others);
  // The stream ends: its blocks wait for its work, then serve any stream. Errors: those of
  // StreamMarks::mark.
  Status close_stream(const StreamId& stream);
  struct Block {
    pagetable::Region* region;
    std::uint64_t bytes;
    std::optional<StreamId> stream;
    std::vector<std::uint64_t> marks;  // not complete yet; only if `stream` is nothing
  };
  // Takes the oldest blocks out until at most `bytes` remain on the device. The caller frees them
  // or puts them again.
  std::vector<Block> shrink(int device, std::uint64_t bytes);
  std::uint64_t bytes(int device) const;

 private:
  using Blocks = std::list<Block>;
  bool usable(Block& block, const StreamId& stream);
  std::uint64_t& bytes_of(int device);

  StreamMarks& marks_;
  mutable std::mutex mutex_;
  Blocks blocks_;  // oldest first
  Blocks spare_;   // nodes for reuse, so that a steady program allocates none
  std::unordered_map<std::uint64_t, std::vector<Blocks::iterator>>
      by_size_;                       // key: (device, bytes); the lowest address last
  std::vector<std::uint64_t> bytes_;  // by device
};

}  // namespace vmem::runtime
