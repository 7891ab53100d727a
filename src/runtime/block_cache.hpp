// Freed allocations of undeclared regions, kept for the next one of the same size: programs that allocate a buffer for every result
// do so thousands of times a second. A block freed on a stream serves that stream at once, and any other stream when the work queued
// before the free is complete. What is in here is dead: its pages are the first to leave HBM, and are not copied out.
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
  explicit BlockCache(SlabSource& source) : source_(source) {}

  // A block with pages for exactly `bytes`, or null.
  pagetable::Region* take(int device, std::uint64_t bytes, const StreamId& stream);
  // `stream`: whose order the free follows; nothing: all work that used the block is complete. `others`: marks of further streams
  // that used the block.
  void put(pagetable::Region& region, const std::optional<StreamId>& stream, std::vector<std::uint64_t> others);
  // The stream ends: its blocks wait for its work, then serve any stream. Errors: those of SlabSource::mark.
  Status close_stream(const StreamId& stream);
  struct Block {
    pagetable::Region* region;
    std::uint64_t bytes;
    std::optional<StreamId> stream;
    std::vector<std::uint64_t> marks;  // not complete yet, when `stream` is nothing
  };
  // Takes the eldest blocks out until at most `bytes` are left on the device, for the caller to free, or to put again.
  std::vector<Block> shrink(int device, std::uint64_t bytes);
  std::uint64_t bytes(int device) const;

 private:
  using Blocks = std::list<Block>;
  bool usable(Block& block, const StreamId& stream);
  std::uint64_t& bytes_of(int device);

  SlabSource& source_;
  mutable std::mutex mutex_;
  Blocks blocks_;  // eldest first
  Blocks spare_;   // nodes for the next ones: nothing is allocated while a program goes round
  std::unordered_map<std::uint64_t, std::vector<Blocks::iterator>>
      by_size_;                       // of (device, bytes); the lowest address last
  std::vector<std::uint64_t> bytes_;  // by device
};

}  // namespace vmem::runtime
