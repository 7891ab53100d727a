// What gives and takes memory once the mover runs, in the order of use: a later part calls earlier
// ones.
#pragma once

#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "pagetable/address_space.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/memory/arena.hpp"
#include "runtime/memory/freed_blocks.hpp"
#include "runtime/memory/life_log.hpp"
#include "runtime/memory/move_gate.hpp"
#include "runtime/memory/queued_work.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/memory/slabs.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "runtime/options/options.hpp"

namespace vmem::runtime {

struct Backing {
  Backing(const Options& options, const Devices& devices, pagetable::AddressSpace& space, migration::Mover& mover,
          migration::StreamTable& streams, ThreadSlots& slots);
  MoveGate gate;
  Regions regions;
  QueuedWork work;
  LifeLog lives;
  FreedBlocks freed;
  Arena arena;
  Slabs slabs;
};

}  // namespace vmem::runtime
