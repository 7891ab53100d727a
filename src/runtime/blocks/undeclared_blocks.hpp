// Allocates and frees memory for programs that do not call vmem. Freed allocations are cached for
// reuse.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/status.hpp"
#include "runtime/blocks/other_uses.hpp"
#include "runtime/explicit/allocations.hpp"
#include "runtime/launch/tables/thread_tables.hpp"
#include "runtime/memory/addresses.hpp"
#include "runtime/memory/arena.hpp"
#include "runtime/memory/freed_blocks.hpp"
#include "runtime/memory/queued_work.hpp"

namespace vmem::runtime {

// Any thread.
class UndeclaredBlocks {
 public:
  struct Parts {
    const gpu::Driver& driver;
    const Devices& devices;
    const pagetable::AddressSpace& space;
    migration::Mover& mover;
    Regions& regions;
    FreedBlocks& freed;
    Arena& arena;
    Suballocator& small;
    QueuedWork& work;
    const AddressResolver& addresses;
    Allocations& allocations;
  };
  explicit UndeclaredBlocks(const Parts& parts) : parts_(parts) {}

  // `device`: ordinal. Errors: INVALID_VALUE, ADDRESS_SPACE, OUT_OF_MEMORY once nothing cached can
  // be freed for it.
  Result<void*> allocate(std::size_t bytes, int device, vmem_stream stream);
  Result<void*> allocate(std::size_t bytes, int device, const StreamId& stream);
  // `stream` orders the free; nullopt: the caller knows that all work that used the allocation is
  // complete. Errors: INVALID_POINTER, IN_USE.
  Status free(void* pointer, std::optional<vmem_stream> stream);
  Status free(void* pointer, const std::optional<StreamId>& stream);
  // A further stream uses the allocation: after its free, the memory is not reused before that
  // stream's work queued until the free has completed. Errors: INVALID_POINTER.
  Status record_stream(void* pointer, vmem_stream stream);
  // Call before the stream is closed: its uses become marks, and its cached blocks serve any
  // stream.
  Status close_stream(vmem_stream stream);
  // Gives all cached allocations back: their regions end, and unused slabs are trimmed.
  Status empty_cache();
  std::uint64_t cached_bytes(int ordinal) const;  // freed and cached
  // The most that can be allocated on a device, and how much of that is free.
  struct Capacity {
    std::uint64_t free_bytes = 0, total_bytes = 0;
  };
  Result<Capacity> capacity(int ordinal);

 private:
  template <class Make>
  auto with_room(std::uint64_t bytes, int device, Make&& make) -> decltype(make());
  Status free_small(std::uintptr_t address, const std::optional<StreamId>& stream);
  Status free_region(pagetable::Region& region, std::uintptr_t address, const std::optional<StreamId>& stream);
  Status free_shared(const pagetable::Region& region, std::uintptr_t address, const std::optional<StreamId>& stream,
                     OtherUses::Taken& others);
  // What the reuse of a block waits for: a stream's order, or marks; with neither for nothing.
  struct Order {
    std::optional<StreamId> stream;
    std::vector<std::uint64_t> marks;
  };
  Result<Order> order_of(const OtherUses::Uses& others, const std::optional<StreamId>& stream);
  Result<std::vector<std::uint64_t>> marks_of(const OtherUses::Uses& others);
  Status wait_for(const OtherUses::Uses& others, CUstream stream);

  const Parts parts_;
  OtherUses other_uses_;
};

}  // namespace vmem::runtime
