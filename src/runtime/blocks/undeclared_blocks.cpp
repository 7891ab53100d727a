#include "runtime/blocks/undeclared_blocks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::runtime {

using pagetable::Region;

namespace {

bool out_of_memory(const Error& error) {
  return error.status == VMEM_ERROR_OUT_OF_MEMORY || error.status == VMEM_ERROR_ADDRESS_SPACE;
}

}  // namespace

Result<void*> UndeclaredBlocks::allocate(std::size_t bytes, int device, vmem_stream stream) {
  return allocate(bytes, device, parts_.work.identify(stream));
}

Result<void*> UndeclaredBlocks::allocate(std::size_t bytes, int device, const StreamId& stream) {
  const std::uint64_t space_bytes = parts_.space.bytes();
  if (bytes > space_bytes) {
    return fail(VMEM_ERROR_ADDRESS_SPACE, fmt::format("{} asked for, the address space is {}; raise --space",
                                                      format_bytes(bytes), format_bytes(space_bytes)));
  }
  VMEM_ASSIGN(const int index, parts_.devices.index_of(device));
  if (bytes == 0) return fail(VMEM_ERROR_INVALID_VALUE, "0 bytes asked for; the least is 1");
  if (bytes <= Suballocator::kLargestBytes) {
    VMEM_ASSIGN(const std::uintptr_t block, parts_.small.allocate(index, bytes, stream));
    return reinterpret_cast<void*>(block);
  }
  if (parts_.arena.takes(index, bytes)) {
    VMEM_ASSIGN(const std::uintptr_t block,
                with_room(bytes, index, [&] { return parts_.arena.allocate(index, bytes, stream); }));
    return reinterpret_cast<void*>(block);
  }
  const std::uint64_t whole_pages = parts_.mover.bytes_in_pages(index, bytes);
  VMEM_ASSIGN(Region * region, parts_.freed.take(index, whole_pages, stream));
  if (region == nullptr) {
    VMEM_ASSIGN(region, with_room(whole_pages, index,
                                  [&] { return parts_.regions.allocate(whole_pages, index, RegionKind::undeclared); }));
  }
  return reinterpret_cast<void*>(parts_.space.address_of(region->first.index));
}

// Frees cached memory, the oldest blocks first, in steps, until the allocation fits: programs reuse
// the others.
template <class Make>
auto UndeclaredBlocks::with_room(std::uint64_t bytes, int device, Make&& make) -> decltype(make()) {
  auto made = make();
  if (!made && out_of_memory(made.error())) {
    VMEM_TRY(parts_.arena.trim(device));
    made = make();
  }
  for (std::uint64_t kept = parts_.freed.bytes(device); !made && kept > 0 && out_of_memory(made.error());) {
    kept -= std::min(kept, std::max(bytes, kept / 8));
    VMEM_TRY(parts_.freed.shrink(device, kept));
    made = make();
  }
  if (made || !out_of_memory(made.error())) return made;
  // Then other devices' memory, and unused slabs.
  VMEM_TRY(empty_cache());
  return make();
}

Status UndeclaredBlocks::free(void* pointer, std::optional<vmem_stream> stream) {
  return free(pointer, stream ? std::optional(parts_.work.identify(*stream)) : std::nullopt);
}

Status UndeclaredBlocks::free(void* pointer, const std::optional<StreamId>& stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  VMEM_ASSIGN(Region* const region, live_region(parts_.space, address));
  if (region->slab) return free_small(address, stream);
  if (region->undeclared) return free_region(*region, address, stream);
  return parts_.allocations.free(pointer, stream ? stream->handle : nullptr);
}

Status UndeclaredBlocks::free_small(std::uintptr_t address, const std::optional<StreamId>& stream) {
  OtherUses::Taken others = other_uses_.take(address);
  VMEM_TRY(wait_for(others.uses(), stream ? stream->handle : nullptr));
  VMEM_TRY(parts_.allocations.free_small(address, stream ? *stream : parts_.work.identify(nullptr)));
  others.freed();
  forget_tables(address, 1);
  return {};
}

Status UndeclaredBlocks::free_region(Region& region, std::uintptr_t address, const std::optional<StreamId>& stream) {
  OtherUses::Taken others = other_uses_.take(address);
  if (region.shares()) return free_shared(region, address, stream, others);
  if (address != parts_.space.address_of(region.first.index) || region.dead.load()) {
    return fail(VMEM_ERROR_INVALID_POINTER,
                fmt::format("{:#x} is not an allocation: it was freed, or lies inside one", address));
  }
  VMEM_ASSIGN(Order order, order_of(others.uses(), stream));
  const std::uint64_t bytes = region.bytes;
  if (!parts_.freed.put(region, order.stream, std::move(order.marks)))
    return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} was freed by another thread", address));
  others.freed();
  forget_tables(address, bytes);
  return {};
}

Status UndeclaredBlocks::free_shared(const Region& region, std::uintptr_t address,
                                     const std::optional<StreamId>& stream, OtherUses::Taken& others) {
  VMEM_ASSIGN(Order order, order_of(others.uses(), stream));
  VMEM_ASSIGN(const std::uint64_t bytes, parts_.arena.free(region, address, order.stream, std::move(order.marks)));
  others.freed();
  forget_tables(address, bytes);
  return {};
}

// With other streams, or a per-thread stream (a different one in every thread), no single stream
// orders the reuse: it waits for marks.
Result<UndeclaredBlocks::Order> UndeclaredBlocks::order_of(const OtherUses::Uses& others,
                                                           const std::optional<StreamId>& stream) {
  Order order{stream, {}};
  VMEM_ASSIGN(order.marks, marks_of(others));
  if (!stream || (order.marks.empty() && stream->handle != CU_STREAM_PER_THREAD)) return order;
  VMEM_ASSIGN(const std::uint64_t own, parts_.work.mark(*stream));
  order.marks.push_back(own);
  order.stream.reset();
  return order;
}

// Marks (stamps) of the work that the other streams have queued by now.
Result<std::vector<std::uint64_t>> UndeclaredBlocks::marks_of(const OtherUses::Uses& others) {
  std::vector<std::uint64_t> marks = others.marks;
  for (const StreamId& other : others.streams) {
    VMEM_ASSIGN(const std::uint64_t marked, parts_.work.mark(other));
    marks.push_back(marked);
  }
  return marks;
}

// Small blocks are reused in the order of one stream, so that stream waits for the others that used
// the block.
Status UndeclaredBlocks::wait_for(const OtherUses::Uses& uses, CUstream stream) {
  // Marks belong to closed streams, or to per-thread streams of other threads. No event can be
  // recorded there from here, so the CPU waits.
  for (const std::uint64_t mark : uses.marks) {
    while (!parts_.work.complete(mark)) std::this_thread::yield();
  }
  const auto& driver = parts_.driver;
  for (const StreamId& other : uses.streams) {
    CUevent event = nullptr;
    VMEM_TRY(driver.check(driver->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate"));
    const CUresult recorded = driver->cuEventRecord(event, other.handle);
    const CUresult waits = recorded == CUDA_SUCCESS ? driver->cuStreamWaitEvent(stream, event, 0) : recorded;
    (void)driver->cuEventDestroy(event);  // waits on the event stay in effect
    VMEM_TRY(driver.check(waits, recorded == CUDA_SUCCESS ? "cuStreamWaitEvent" : "cuEventRecord"));
  }
  return {};
}

Status UndeclaredBlocks::record_stream(void* pointer, vmem_stream stream) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  const auto allocation = parts_.addresses.allocation_at(address);
  if (!allocation) return fail(VMEM_ERROR_INVALID_POINTER, fmt::format("{:#x} is in no live allocation", address));
  const StreamId id = parts_.work.identify(stream);
  if (id.handle != CU_STREAM_PER_THREAD) {
    other_uses_.add_stream(allocation->base, id);
    return {};
  }
  VMEM_ASSIGN(const std::uint64_t now, parts_.work.mark(id));
  other_uses_.add_mark(allocation->base, now);
  return {};
}

Status UndeclaredBlocks::close_stream(vmem_stream stream) {
  const StreamId id = parts_.work.identify(stream);
  VMEM_TRY(other_uses_.close(id, [&] { return parts_.work.mark(id); }));
  VMEM_TRY(parts_.freed.close_stream(id));
  return parts_.arena.close_stream(id);
}

Status UndeclaredBlocks::empty_cache() {
  VMEM_TRY(parts_.freed.clear());
  VMEM_TRY(parts_.arena.trim());
  return parts_.small.trim();
}

std::uint64_t UndeclaredBlocks::cached_bytes(int ordinal) const {
  const auto index = parts_.devices.index_of(ordinal);
  return index ? parts_.freed.bytes(*index) + parts_.arena.free_bytes(*index) : 0;
}

Result<UndeclaredBlocks::Capacity> UndeclaredBlocks::capacity(int ordinal) {
  VMEM_ASSIGN(const int index, parts_.devices.index_of(ordinal));
  migration::CapacityRequest request;
  request.device = index;
  VMEM_TRY(parts_.mover.call(request));
  const std::uint64_t cached = parts_.freed.bytes(index) + parts_.arena.free_bytes(index);
  return Capacity{std::min(request.free_bytes + cached, request.total_bytes), request.total_bytes};
}

}  // namespace vmem::runtime
