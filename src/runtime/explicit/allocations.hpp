// Allocations of programs that call vmem.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "pagetable/address_space.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/memory/arena.hpp"
#include "runtime/memory/freed_blocks.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "runtime/suballocator.hpp"
#include "tiers/file/file_tier.hpp"

namespace vmem::runtime {

// Any thread.
class Allocations {
 public:
  Allocations(const Devices& devices, const pagetable::AddressSpace& space, Regions& regions, FreedBlocks& freed,
              Arena& arena, Suballocator& small, const ThreadSlots& slots, tiers::FileTier& files)
      : devices_(devices),
        space_(space),
        regions_(regions),
        freed_(freed),
        arena_(arena),
        small_(small),
        slots_(slots),
        files_(files) {}

  // `device`: ordinal. Errors: INVALID_VALUE, ADDRESS_SPACE, OUT_OF_MEMORY.
  Result<void*> allocate(std::size_t bytes, int device, vmem_stream stream);
  // Read-only memory whose pages are read from the file on use. `bytes` of 0: to the file's end.
  Result<void*> map_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes, int device);
  // Errors: INVALID_POINTER, IN_USE.
  Status free(void* pointer, vmem_stream stream);
  Status free_small(std::uintptr_t address, const StreamId& stream);

 private:
  const Devices& devices_;
  const pagetable::AddressSpace& space_;
  Regions& regions_;
  FreedBlocks& freed_;
  Arena& arena_;
  Suballocator& small_;
  const ThreadSlots& slots_;
  tiers::FileTier& files_;
};

}  // namespace vmem::runtime
