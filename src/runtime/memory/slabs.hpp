// Allocates the suballocator's slabs as regions, and ends them.
#pragma once

#include <atomic>

#include "migration/mover.hpp"
#include "pagetable/address_space.hpp"
#include "runtime/memory/arena.hpp"
#include "runtime/memory/freed_blocks.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/suballocator.hpp"

namespace vmem::runtime {

class Slabs final : public SlabSource {
 public:
  Slabs(const pagetable::AddressSpace& space, Regions& regions, FreedBlocks& freed, Arena& arena, MoveGate& gate,
        migration::Mover& mover)
      : space_(space), regions_(regions), freed_(freed), arena_(arena), gate_(gate), mover_(mover) {}

  Result<std::uintptr_t> allocate_slabs(int device, std::size_t bytes) override;
  Status free_slabs(std::uintptr_t address) override;
  std::size_t spare_bytes(int device) const override;
  // All regions have ended, the slabs' too. REQUIRES: only the suballocator's end follows.
  void regions_ended() { ended_ = true; }

 private:
  const pagetable::AddressSpace& space_;
  Regions& regions_;
  FreedBlocks& freed_;
  Arena& arena_;
  MoveGate& gate_;
  migration::Mover& mover_;
  bool ended_ = false;
};

}  // namespace vmem::runtime
