// Freed undeclared allocations, cached for the next allocation of the same size, since programs may
// allocate thousands of result buffers a second. A block freed on a stream serves that stream at
// once, and any other stream once the work queued before the free is complete. Cached blocks are
// dead: the mover evicts their pages first and does not copy them out.
#pragma once

#include <boost/intrusive/list.hpp>
#include <boost/intrusive/set.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "pagetable/region.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

// Every method may be called from any thread.
class BlockCache {
 public:
  struct Block {
    pagetable::Region* region;
    std::uint64_t bytes;
    std::optional<StreamId> stream;
    std::vector<std::uint64_t> marks;  // not complete yet; only if `stream` is nothing
    boost::intrusive::list_member_hook<> by_age;
    boost::intrusive::set_member_hook<> by_size;
  };

  struct PutBack {
    BlockCache* cache = nullptr;
    void operator()(Block* block) const noexcept { cache->put_back(*block); }
  };
  // A block that is out of the cache. Its destructor puts it back, as it is, as the youngest.
  using Taken = std::unique_ptr<Block, PutBack>;

  BlockCache(StreamMarks& marks, std::size_t devices) : marks_(marks), bytes_(devices, 0) {}
  ~BlockCache();

  // A block with pages for exactly `bytes`, or null.
  Taken take(int device, std::uint64_t bytes, const StreamId& stream);
  // `stream`: the stream that orders the free; nothing: all work that used the block is complete.
  // `others`: marks of further streams that used the block. std::bad_alloc: nothing has changed.
  void put(pagetable::Region& region, const std::optional<StreamId>& stream, std::vector<std::uint64_t> others);
  // The block does not come back.
  static void forget(Taken block) noexcept { delete block.release(); }
  // The stream ends: its blocks wait for its work, then serve any stream. Errors: those of
  // StreamMarks::mark.
  Status close_stream(const StreamId& stream);
  // Takes the oldest blocks out until at most `bytes` remain on the device. std::bad_alloc: nothing
  // has changed.
  std::vector<Taken> shrink(int device, std::uint64_t bytes);
  std::uint64_t bytes(int device) const;

 private:
  // Device, bytes, address in granules.
  using SizeKey = std::tuple<int, std::uint64_t, std::uint32_t>;
  struct SizeKeyOf {
    using type = SizeKey;
    SizeKey operator()(const Block& block) const {
      return {block.region->device, block.bytes, block.region->first.index};
    }
  };
  using ByAge = boost::intrusive::list<
      Block, boost::intrusive::member_hook<Block, boost::intrusive::list_member_hook<>, &Block::by_age>>;
  using BySize =
      boost::intrusive::set<Block,
                            boost::intrusive::member_hook<Block, boost::intrusive::set_member_hook<>, &Block::by_size>,
                            boost::intrusive::key_of_value<SizeKeyOf>>;

  bool usable(Block& block, const StreamId& stream);
  Taken unlink(Block& block) noexcept;
  void put_back(Block& block) noexcept;

  StreamMarks& marks_;
  mutable std::mutex mutex_;  // guards the members below
  ByAge by_age_;              // owns the blocks; oldest first
  BySize by_size_;
  std::vector<std::uint64_t> bytes_;  // by device
};

}  // namespace vmem::runtime
