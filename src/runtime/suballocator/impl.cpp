#include "runtime/suballocator/impl.hpp"

#include <algorithm>
#include <span>

namespace vmem::runtime {
namespace {

bool only_its_thread_marks(const StreamId& stream) noexcept {
  return reinterpret_cast<std::uintptr_t>(stream.handle) == kPerThreadHandle;
}

}  // namespace

Origin Suballocator::Impl::origin_of(const StreamId& stream, const ThreadCache* cache) const noexcept {
  if (!only_its_thread_marks(stream)) return {.stream = stream};
  // A thread without a cache has no number. A fresh one equals no other, so the blocks wait for the
  // mark.
  return {.stream = stream, .thread = cache != nullptr ? cache->number : unique_number()};
}

Mark Suballocator::Impl::mark(const StreamId& stream) {
  // Not the caller's error: a batch without a mark serves its own stream, and the depot asks again.
  if (auto made = marks_.mark(stream)) return *made;
  return std::nullopt;
}

Result<std::size_t> Suballocator::Impl::take(int device, std::uint32_t size_class, const Origin& origin,
                                             std::span<std::uintptr_t> out) {
  auto taken = central_.take(device, size_class, origin, out);
  if (taken) return taken;
  // The source has no more: blocks of other streams and threads may be free by now, or complete a
  // slab.
  drain_all();
  central_.settle();
  if (const std::size_t count = central_.take_present(device, size_class, origin, out); count != 0) return count;
  if (auto again = central_.take(device, size_class, origin, out)) return again;
  return taken;
}

Result<std::uintptr_t> Suballocator::Impl::refill(ThreadCache* cache, int device, std::uint32_t size_class,
                                                  const StreamId& stream) {
  const SizeClass& sizes = kSizeClasses[size_class];
  std::array<std::uintptr_t, kMostBin> blocks;
  const std::size_t wanted = cache != nullptr ? sizes.cached / 2 : 1;
  VMEM_ASSIGN(const std::size_t count,
              take(device, size_class, origin_of(stream, cache), std::span(blocks).first(wanted)));
  if (cache == nullptr || count == 1) return blocks[0];

  const auto bytes = std::int64_t(count - 1) * sizes.block_bytes;
  if (cache->cached_bytes + bytes > ThreadCache::kMostBytes) drain(*cache);
  Shelf& shelf = shelf_for(*cache, device, stream);
  for (std::size_t i = count - 1; i > 0; --i) shelf.push(size_class, blocks[i]);
  cache->cached_bytes += bytes;
  return blocks[0];
}

void Suballocator::Impl::keep(ThreadCache* cache, int device, std::uint32_t size_class, const StreamId& stream,
                              std::uintptr_t block) {
  if (cache == nullptr) {
    central_.put(device, size_class, origin_of(stream, cache), mark(stream), std::span(&block, 1));
    return;
  }
  const std::uint32_t bytes = kSizeClasses[size_class].block_bytes;
  if (cache->cached_bytes + bytes > ThreadCache::kMostBytes) drain(*cache);
  Shelf& shelf = shelf_for(*cache, device, stream);
  if (shelf.full(size_class)) make_room(*cache, shelf, size_class);
  shelf.push(size_class, block);
  cache->cached_bytes += bytes;
}

Shelf& Suballocator::Impl::shelf_for(ThreadCache& cache, int device, const StreamId& stream) {
  if (Shelf* shelf = cache.shelf(device, stream); shelf != nullptr) return *shelf;
  Shelf& shelf = cache.oldest_or_new();
  drain(cache, shelf);
  cache.dedicate(shelf, device, stream);
  return shelf;
}

void Suballocator::Impl::make_room(ThreadCache& cache, Shelf& shelf, std::uint32_t size_class) {
  std::array<std::uintptr_t, kMostBin> older;
  // A thread that closes the stream finds the blocks here or, marked, in the depot.
  const std::lock_guard lock(cache.mutex);
  const std::uint32_t before = shelf.count(size_class);
  const std::size_t count = shelf.pop_older_half(size_class, older);
  cache.cached_bytes -= std::int64_t{before - shelf.count(size_class)} * kSizeClasses[size_class].block_bytes;
  if (count == 0) return;
  central_.put(shelf.device, size_class, origin_of(shelf.stream, &cache), mark(shelf.stream),
               std::span(older).first(count));
}

std::vector<Suballocator::Impl::Taken> Suballocator::Impl::take_all(Shelf& shelf) {
  std::vector<Taken> all;
  std::array<std::uintptr_t, kMostBin> blocks;
  for (std::uint32_t size_class = 0; size_class < kClasses; ++size_class) {
    const std::size_t count = shelf.take_all(size_class, blocks);
    if (count != 0) all.push_back({size_class, {blocks.begin(), blocks.begin() + std::ptrdiff_t(count)}});
  }
  return all;
}

void Suballocator::Impl::put(const Shelf& shelf, const ThreadCache& cache, const std::vector<Taken>& taken) {
  if (taken.empty()) return;
  // Marked after the blocks were taken, so that the mark covers all work queued before the last
  // free.
  const Mark made = mark(shelf.stream);
  const Origin origin = origin_of(shelf.stream, &cache);
  for (const auto& [size_class, blocks] : taken) central_.put(shelf.device, size_class, origin, made, blocks);
}

void Suballocator::Impl::drain(ThreadCache& cache, Shelf& shelf) {
  const std::lock_guard lock(cache.mutex);  // as in make_room
  put(shelf, cache, take_all(shelf));
  for (std::uint32_t size_class = 0; size_class < kClasses; ++size_class) {
    cache.cached_bytes -= std::int64_t{shelf.count(size_class)} * kSizeClasses[size_class].block_bytes;
  }
  shelf.reset_counts();
}

void Suballocator::Impl::drain(ThreadCache& cache) {
  for (const auto& shelf : cache.shelves) drain(cache, *shelf);
}

void Suballocator::Impl::drain_all() {
  const ThreadCache* const mine = registry_.mine();
  registry_.for_each([&](ThreadCache& cache) {
    const std::lock_guard lock(cache.mutex);
    for (const auto& shelf : cache.shelves) {
      if (only_its_thread_marks(shelf->stream) && &cache != mine) continue;
      put(*shelf, cache, take_all(*shelf));
    }
  });
}

Status Suballocator::Impl::close_stream(const StreamId& stream) {
  const ThreadCache* const mine = registry_.mine();
  registry_.for_each([&](ThreadCache& cache) {
    if (only_its_thread_marks(stream) && &cache != mine) return;
    const std::lock_guard lock(cache.mutex);
    for (const auto& shelf : cache.shelves) {
      if (shelf->stream == stream) put(*shelf, cache, take_all(*shelf));
    }
  });
  const Origin origin = origin_of(stream, mine);
  // The source may not know a stream on which nothing was freed.
  if (!central_.holds(origin)) return {};
  VMEM_ASSIGN(const std::uint64_t last, marks_.mark(stream));
  Origin ended = origin;
  ended.ended = unique_number();
  central_.end(origin, ended, last);
  return {};
}

}  // namespace vmem::runtime
