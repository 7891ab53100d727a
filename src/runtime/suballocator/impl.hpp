// The suballocator's parts joined: moves blocks between thread caches and depots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/suballocator.hpp"
#include "runtime/suballocator/cache_registry.hpp"
#include "runtime/suballocator/central.hpp"
#include "runtime/suballocator/thread_cache.hpp"

namespace vmem::runtime {

inline constexpr std::uintptr_t kLegacyHandle = 1;     // CU_STREAM_LEGACY
inline constexpr std::uintptr_t kPerThreadHandle = 2;  // CU_STREAM_PER_THREAD

class Suballocator::Impl {
 public:
  Impl(SlabSource& source, StreamMarks& marks, std::uintptr_t base, std::size_t bytes)
      : marks_(marks), central_(source, marks, base, bytes), registry_([this](ThreadCache& cache) { drain(cache); }) {}

  Central& central() noexcept { return central_; }
  CacheRegistry& registry() noexcept { return registry_; }

  StreamId identify(vmem_stream stream) noexcept {
    const auto handle = reinterpret_cast<std::uintptr_t>(stream);
    if (handle > kPerThreadHandle) [[likely]]
      return {stream, 0};
    return {handle == 0 ? reinterpret_cast<vmem_stream>(kLegacyHandle) : stream, marks_.context()};
  }

  // The calling thread's cache (may be null) has no block: takes some from the depot, returns one
  // and caches the rest.
  Result<std::uintptr_t> refill(ThreadCache* cache, int device, std::uint32_t size_class, const StreamId& stream);
  // Stores a block owned by the calling thread where its next allocation finds it.
  void keep(ThreadCache* cache, int device, std::uint32_t size_class, const StreamId& stream, std::uintptr_t block);
  // Empties every cache, except of blocks that only the cache's thread can mark.
  void drain_all();
  Status close_stream(const StreamId& stream);

 private:
  struct Taken {
    std::uint32_t size_class;
    std::vector<std::uintptr_t> blocks;
  };
  static std::vector<Taken> take_all(Shelf& shelf);
  Origin origin_of(const StreamId& stream, const ThreadCache* cache) const noexcept;
  Mark mark(const StreamId& stream);
  // The stream's shelf; if there are too many, one emptied of another stream.
  Shelf& shelf_for(ThreadCache& cache, int device, const StreamId& stream);
  Result<std::size_t> take(int device, std::uint32_t size_class, const Origin& origin, std::span<std::uintptr_t> out);
  void make_room(ThreadCache& cache, Shelf& shelf, std::uint32_t size_class);
  void put(const Shelf& shelf, const ThreadCache& cache, const std::vector<Taken>& taken);
  // Only for the owner, with its own cache.
  void drain(ThreadCache& cache);
  void drain(ThreadCache& cache, Shelf& shelf);

  StreamMarks& marks_;
  Central central_;
  CacheRegistry registry_;  // after central_: ending threads put their blocks into it
};

}  // namespace vmem::runtime
