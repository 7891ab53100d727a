#include "runtime/memory/life_log.hpp"

#include "base/clock.hpp"
#include "base/memory_reserve.hpp"

namespace vmem::runtime {

using pagetable::LoggedUse;

void LifeLog::changed(pagetable::Span memory, std::uint64_t life, bool dead) noexcept {
  const LoggedUse change =
      LoggedUse::change(SteadyClock::now_ns(), {memory.first()}, memory.count(), std::uint32_t(life), dead);
  (void)ran_within_memory([&] {
    const auto slot = slots_.current();
    if (!slot) return;
    // Not from the room that the thread's launches have reserved.
    (*slot)->log.reserve((*slot)->owed() + 1);
    if ((*slot)->log.append(change)) mover_.poke();
  });
}

}  // namespace vmem::runtime
