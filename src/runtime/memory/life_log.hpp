// Tells the mover that undeclared memory was freed, or allocated anew.
#pragma once

#include "migration/mover.hpp"
#include "pagetable/region.hpp"
#include "runtime/memory/thread_slots.hpp"

namespace vmem::runtime {

class LifeLog {
 public:
  // trace: all changes are told, also of blocks that are only a part of their pages.
  enum class For : std::uint8_t { policies, trace };
  LifeLog(ThreadSlots& slots, migration::Mover& mover, For whom) : slots_(slots), mover_(mover), whom_(whom) {}

  bool traces() const { return whom_ == For::trace; }
  // False: `changed` would serve nobody, since uses are not tracked. When tracking begins the mover
  // looks at every region; a thread that changes something after that sees true here.
  bool listens(const pagetable::Region& region) const {
    return traces() || mover_.tracks() || region.tells_changes.load(std::memory_order_seq_cst);
  }
  // Decisions about memory read the region itself. The log entry is only for the policy and for
  // traces, and may be missing if the thread is ending or memory is lacking.
  void changed(pagetable::Span memory, std::uint64_t life, bool dead) noexcept;

 private:
  ThreadSlots& slots_;
  migration::Mover& mover_;
  const For whom_;
};

}  // namespace vmem::runtime
