#include "runtime/suballocator.hpp"

#include <fmt/format.h>

#include "base/sizes.hpp"
#include "runtime/suballocator/impl.hpp"

namespace vmem::runtime {
namespace {

std::unexpected<Error> refuse(int device, std::size_t bytes) {
  if (bytes == 0 || bytes > Suballocator::kLargestBytes) {
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("a small allocation has 1 to {} bytes, not {}", Suballocator::kLargestBytes, bytes));
  }
  return fail(VMEM_ERROR_INVALID_VALUE,
              fmt::format("device {} is not in 0..{}", device, Suballocator::kMaxDevices - 1));
}

}  // namespace

Result<std::unique_ptr<Suballocator>> Suballocator::create(SlabSource& source, StreamMarks& marks,
                                                           std::uintptr_t space_base, std::size_t space_bytes) {
  if (space_base % kGranuleBytes != 0 || space_bytes % kGranuleBytes != 0 || space_bytes == 0) {
    return fail(VMEM_ERROR_INVALID_VALUE, fmt::format("the address space {:#x} of {} is not made of 2 MiB granules",
                                                      space_base, format_bytes(space_bytes)));
  }
  auto impl = std::make_unique<Impl>(source, marks, space_base, space_bytes);
  VMEM_TRY(impl->central().reserve_tables());
  return std::unique_ptr<Suballocator>(new Suballocator(std::move(impl)));
}

Suballocator::Suballocator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Suballocator::~Suballocator() = default;

Result<std::uintptr_t> Suballocator::allocate(int device, std::size_t bytes, vmem_stream stream) {
  return allocate(device, bytes, impl_->identify(stream));
}

Status Suballocator::free(std::uintptr_t address, vmem_stream stream) { return free(address, impl_->identify(stream)); }

Result<std::uintptr_t> Suballocator::allocate(int device, std::size_t bytes, const StreamId& id) {
  if (bytes - 1 >= kLargestBytes || unsigned(device) >= unsigned(kMaxDevices)) [[unlikely]]
    return refuse(device, bytes);
  const std::uint32_t size_class = class_of(bytes);
  const std::uint32_t block_bytes = kSizeClasses[size_class].block_bytes;
  ThreadCache* const cache = impl_->registry().mine();
  std::uintptr_t block = 0;
  if (cache != nullptr) [[likely]] {
    if (Shelf* const shelf = cache->shelf(device, id); shelf != nullptr) [[likely]] {
      std::uint32_t emptied = 0;
      block = shelf->pop(size_class, emptied);
      cache->cached_bytes -= std::int64_t{emptied} * block_bytes;
    }
  }
  if (block == 0) [[unlikely]] {
    VMEM_ASSIGN(block, impl_->refill(cache, device, size_class, id));
  }
  impl_->central().map().set_live(block, block_bytes - std::uint32_t(bytes));
  cache != nullptr ? cache->account(std::int64_t(bytes)) : impl_->registry().account(std::int64_t(bytes));
  return block;
}

Status Suballocator::free(std::uintptr_t address, const StreamId& id) {
  BlockMap& map = impl_->central().map();
  if (!map.placement(address).in_slab() || address % kUnitBytes != 0) [[unlikely]]
    return std::unexpected(map.explain(address));
  const std::int32_t excess = map.claim(address);
  if (excess < 0) [[unlikely]]
    return std::unexpected(map.explain(address));
  // Read after the claim: the block is this thread's, so its slab cannot be replaced.
  const Placement placement = map.placement(address);
  const std::uint32_t size_class = placement.size_class();
  const std::uint32_t block_bytes = kSizeClasses[size_class].block_bytes;
  ThreadCache* const cache = impl_->registry().mine();
  const std::int64_t asked = std::int64_t{block_bytes} - excess;
  cache != nullptr ? cache->account(-asked) : impl_->registry().account(-asked);
  if (cache != nullptr && cache->cached_bytes + block_bytes <= ThreadCache::kMostBytes) [[likely]] {
    if (Shelf* const shelf = cache->shelf(placement.device(), id); shelf != nullptr && !shelf->full(size_class))
        [[likely]] {
      shelf->push(size_class, address);
      cache->cached_bytes += block_bytes;
      return {};
    }
  }
  impl_->keep(cache, placement.device(), size_class, id, address);
  return {};
}

std::optional<SmallBlock> Suballocator::find(std::uintptr_t address) const noexcept {
  return impl_->central().map().find(address);
}

Status Suballocator::close_stream(vmem_stream stream) { return impl_->close_stream(impl_->identify(stream)); }

Status Suballocator::trim() {
  impl_->drain_all();
  impl_->central().settle();
  return impl_->central().release_spare();
}

std::size_t Suballocator::live_bytes() const { return std::size_t(impl_->registry().live_bytes()); }
std::size_t Suballocator::slab_bytes() const { return impl_->central().slab_bytes(); }
std::size_t Suballocator::metadata_bytes() const {
  return sizeof(Impl) + impl_->central().metadata_bytes() + impl_->registry().bytes();
}

}  // namespace vmem::runtime
