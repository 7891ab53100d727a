#include "runtime/memory/freed_blocks.hpp"

#include <utility>

namespace vmem::runtime {

using pagetable::Region;

Result<Region*> FreedBlocks::take(int device, std::uint64_t bytes, const StreamId& stream) {
  BlockCache::Taken block = cache_.take(device, bytes, stream);
  if (block == nullptr) return nullptr;
  Region* const region = block->region;
  set_dead(*region, false);
  Status settled;
  try {
    settled = regions_.make_accessible_if_drained(*region);
  } catch (...) {
    set_dead(*region, true);
    throw;
  }
  if (settled) {
    BlockCache::forget(std::move(block));
    return region;
  }
  set_dead(*region, true);
  return std::unexpected(std::move(settled).error());
}

// The cache has no limit: dead pages are evicted first, and allocation frees cached blocks when it
// runs out of memory.
bool FreedBlocks::put(Region& region, const std::optional<StreamId>& stream, std::vector<std::uint64_t> others) {
  if (!set_dead(region, true)) return false;
  try {
    cache_.put(region, stream, std::move(others));
  } catch (...) {
    set_dead(region, false);  // so that the block can be freed again once there is memory
    throw;
  }
  return true;
}

Status FreedBlocks::shrink(int device, std::uint64_t most) {
  if (cache_.bytes(device) <= most) return {};
  VMEM_ASSIGN(const auto drained, gate_.drain());
  for (BlockCache::Taken& block : cache_.shrink(device, most)) {
    // free_unused needs no stream: every use is logged or in its stream's record.
    auto freed = regions_.free_unused(*block->region, block->region->first.index);
    if (freed) {
      BlockCache::forget(std::move(block));
    } else if (freed.error().status != VMEM_ERROR_IN_USE) {  // a launch's pointer table
      return freed;
    } else {
      block.reset();  // back in the cache
    }
  }
  return {};
}

Status FreedBlocks::clear() {
  for (std::size_t i = 0; i < devices_; ++i) VMEM_TRY(shrink(int(i), 0));
  return {};
}

// True if the flag changed.
bool FreedBlocks::set_dead(Region& region, bool dead) {
  if (region.dead.exchange(dead, std::memory_order_seq_cst) == dead) return false;
  const std::uint64_t life =
      dead ? region.life.fetch_add(1, std::memory_order_seq_cst) + 1 : region.life.load(std::memory_order_seq_cst);
  if (lives_.listens(region)) lives_.changed(region.whole, life, dead);
  return true;
}

}  // namespace vmem::runtime
