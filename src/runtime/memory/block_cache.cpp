#include "runtime/memory/block_cache.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

namespace vmem::runtime {
namespace {

std::uint64_t size_key(int device, std::uint64_t bytes) { return bytes >> 21 | std::uint64_t(device) << 48; }
std::uint64_t backed_bytes(const pagetable::Region& region) { return region.page_count * region.page_bytes(); }

constexpr auto address_of = [](const auto& block) { return block->region->first.index; };

}  // namespace

// REQUIRES mutex_.
std::uint64_t& BlockCache::bytes_of(int device) {
  if (bytes_.size() <= std::size_t(device)) bytes_.resize(std::size_t(device) + 1);
  return bytes_[std::size_t(device)];
}

// REQUIRES mutex_.
bool BlockCache::usable(Block& block, const StreamId& stream) {
  if (block.stream) return *block.stream == stream;
  std::erase_if(block.marks, [&](std::uint64_t mark) { return marks_.complete(mark); });
  return block.marks.empty();
}

// Takes the usable block at the lowest address: a program that repeats its allocations then gets
// the same blocks in the same order, and the policy can predict their uses.
pagetable::Region* BlockCache::take(int device, std::uint64_t bytes, const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  const auto found = by_size_.find(size_key(device, bytes));
  if (found == by_size_.end()) return nullptr;
  auto& candidates = found->second;
  for (auto at = candidates.rbegin(); at != candidates.rend(); ++at) {
    if (!usable(**at, stream)) continue;
    pagetable::Region* region = (*at)->region;
    bytes_of(device) -= bytes;
    spare_.splice(spare_.begin(), blocks_, *at);
    candidates.erase(std::next(at).base());
    return region;
  }
  return nullptr;
}

void BlockCache::put(pagetable::Region& region, const std::optional<StreamId>& stream,
                     std::vector<std::uint64_t> others) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t bytes = backed_bytes(region);
  std::uint64_t& total = bytes_of(region.device);
  auto& candidates = by_size_[size_key(region.device, bytes)];
  if (spare_.empty()) spare_.emplace_back();
  spare_.front() = {&region, bytes, stream, std::move(others)};
  const auto place = std::ranges::lower_bound(candidates, region.first.index, std::greater(), address_of);
  candidates.insert(place, spare_.begin());
  // Nothing throws from here on: a failed put changes nothing.
  blocks_.splice(blocks_.end(), spare_, spare_.begin());
  total += bytes;
}

Status BlockCache::close_stream(const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  std::optional<std::uint64_t> mark;
  for (Block& block : blocks_) {
    if (block.stream != stream) continue;
    if (!mark) {
      VMEM_ASSIGN(mark, marks_.mark(stream));
    }
    block.stream.reset();
    block.marks.push_back(*mark);
  }
  return {};
}

std::vector<BlockCache::Block> BlockCache::shrink(int device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  std::vector<Block> out;
  for (auto at = blocks_.begin(); at != blocks_.end() && bytes_of(device) > bytes;) {
    const auto block = at++;
    if (block->region->device != device) continue;
    bytes_of(device) -= block->bytes;
    std::erase(by_size_[size_key(device, block->bytes)], block);
    out.push_back(std::move(*block));
    blocks_.erase(block);
  }
  return out;
}

std::uint64_t BlockCache::bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return std::size_t(device) < bytes_.size() ? bytes_[std::size_t(device)] : 0;
}

}  // namespace vmem::runtime
