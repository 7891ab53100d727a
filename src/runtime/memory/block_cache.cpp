#include "runtime/memory/block_cache.hpp"

#include <algorithm>
#include <utility>

namespace vmem::runtime {
namespace {

std::uint64_t backed_bytes(const pagetable::Region& region) { return region.page_count * region.page_bytes(); }

}  // namespace

BlockCache::~BlockCache() {
  by_size_.clear();
  by_age_.clear_and_dispose(std::default_delete<Block>());
}

// REQUIRES mutex_.
bool BlockCache::usable(Block& block, const StreamId& stream) {
  if (block.stream) return *block.stream == stream;
  std::erase_if(block.marks, [&](std::uint64_t mark) { return marks_.complete(mark); });
  return block.marks.empty();
}

// REQUIRES mutex_.
BlockCache::Taken BlockCache::unlink(Block& block) noexcept {
  by_size_.erase(by_size_.iterator_to(block));
  by_age_.erase(by_age_.iterator_to(block));
  bytes_[std::size_t(block.region->device)] -= block.bytes;
  return Taken(&block, PutBack{this});
}

// Takes the usable block at the lowest address: a program that repeats its allocations then gets
// the same blocks in the same order, and the policy can predict their uses.
BlockCache::Taken BlockCache::take(int device, std::uint64_t bytes, const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  for (auto at = by_size_.lower_bound(SizeKey{device, bytes, 0}); at != by_size_.end(); ++at) {
    if (at->region->device != device || at->bytes != bytes) break;
    if (usable(*at, stream)) return unlink(*at);
  }
  return {};
}

void BlockCache::put(pagetable::Region& region, const std::optional<StreamId>& stream,
                     std::vector<std::uint64_t> others) {
  put_back(*std::make_unique<Block>(&region, backed_bytes(region), stream, std::move(others)).release());
}

void BlockCache::put_back(Block& block) noexcept {
  const std::lock_guard lock(mutex_);
  bytes_[std::size_t(block.region->device)] += block.bytes;
  by_size_.insert(block);
  by_age_.push_back(block);
}

Status BlockCache::close_stream(const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  std::optional<std::uint64_t> mark;
  for (Block& block : by_age_) {
    if (block.stream != stream) continue;
    if (!mark) {
      VMEM_ASSIGN(mark, marks_.mark(stream));
    }
    block.marks.push_back(*mark);
    block.stream.reset();
  }
  return {};
}

std::vector<BlockCache::Taken> BlockCache::shrink(int device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto of_device = [&](const Block& block) { return block.region->device == device; };
  std::size_t most = 0;
  std::uint64_t left = bytes_[std::size_t(device)];
  for (auto at = by_age_.begin(); at != by_age_.end() && left > bytes; ++at) {
    if (!of_device(*at)) continue;
    left -= at->bytes;
    ++most;
  }
  std::vector<Taken> out;
  out.reserve(most);
  for (auto at = by_age_.begin(); out.size() < most;) {
    Block& block = *at++;
    if (of_device(block)) out.push_back(unlink(block));
  }
  return out;
}

std::uint64_t BlockCache::bytes(int device) const {
  const std::lock_guard lock(mutex_);
  return bytes_[std::size_t(device)];
}

}  // namespace vmem::runtime
