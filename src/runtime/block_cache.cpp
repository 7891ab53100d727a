#include "runtime/block_cache.hpp"

#include <algorithm>
#include <utility>

namespace vmem::runtime {
namespace {

std::uint64_t size_key(int device, std::uint64_t bytes) { return bytes >> 21 | std::uint64_t(device) << 48; }
std::uint64_t backed_bytes(const pagetable::Region& region) { return region.page_count * region.page_bytes(); }

}  // namespace

// REQUIRES mutex_.
bool BlockCache::usable(Block& block, const StreamId& stream) {
  if (block.stream) return *block.stream == stream;
  std::erase_if(block.marks, [&](std::uint64_t mark) { return source_.complete(mark); });
  return block.marks.empty();
}

// The one at the lowest address: a program that repeats its allocations and frees gets the same blocks in the same order every time,
// so that the order in which it uses them can be foreseen. (The youngest, say, would be another one every time.)
pagetable::Region* BlockCache::take(int device, std::uint64_t bytes, const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  const auto found = by_size_.find(size_key(device, bytes));
  if (found == by_size_.end()) return nullptr;
  auto& candidates = found->second;
  for (auto at = candidates.begin(); at != candidates.end(); ++at) {
    if (!usable(*at->second, stream)) continue;
    pagetable::Region* region = at->second->region;
    bytes_[device] -= bytes;
    blocks_.erase(at->second);
    candidates.erase(at);
    return region;
  }
  return nullptr;
}

void BlockCache::put(pagetable::Region& region, const std::optional<StreamId>& stream,
                     std::vector<std::uint64_t> others) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t bytes = backed_bytes(region);
  blocks_.push_back({&region, bytes, stream, std::move(others)});
  by_size_[size_key(region.device, bytes)].emplace(region.first.index, std::prev(blocks_.end()));
  bytes_[region.device] += bytes;
}

Status BlockCache::close_stream(const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  std::optional<std::uint64_t> mark;
  for (Block& block : blocks_) {
    if (block.stream != stream) continue;
    if (!mark) {
      VMEM_ASSIGN(mark, source_.mark(stream));
    }
    block.stream.reset();
    block.marks.push_back(*mark);
  }
  return {};
}

std::vector<BlockCache::Block> BlockCache::shrink(int device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<Block> out;
  for (auto at = blocks_.begin(); at != blocks_.end() && bytes_[device] > bytes;) {
    const auto block = at++;
    if (block->region->device != device) continue;
    bytes_[device] -= block->bytes;
    by_size_[size_key(device, block->bytes)].erase(block->region->first.index);
    out.push_back(std::move(*block));
    blocks_.erase(block);
  }
  return out;
}

std::uint64_t BlockCache::bytes(int device) const {
  const std::lock_guard lock(mutex_);
  const auto found = bytes_.find(device);
  return found == bytes_.end() ? 0 : found->second;
}

}  // namespace vmem::runtime
