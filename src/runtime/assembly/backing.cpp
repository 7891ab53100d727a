#include "runtime/assembly/backing.hpp"

namespace vmem::runtime {

Backing::Backing(const Options& options, const Devices& devices, pagetable::AddressSpace& space,
                 migration::Mover& mover, migration::StreamTable& streams, ThreadSlots& slots)
    : gate(options.drained ? MoveGate::Mode::drained : MoveGate::Mode::open, devices),
      regions(mover, streams, gate),
      work(streams),
      lives(slots, mover, options.trace.empty() ? LifeLog::For::policies : LifeLog::For::trace),
      freed(work, regions, gate, lives, devices.size()),
      arena({.space = space, .mover = mover, .regions = regions, .marks = work, .lives = lives}, devices.size()),
      slabs(space, regions, freed, arena, gate, mover) {}

}  // namespace vmem::runtime
