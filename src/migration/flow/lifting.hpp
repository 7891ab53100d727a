// Moves pages of host memory up into frames, to free their slots. Malloc accepts no more than all
// tiers hold, so HBM has free frames when every tier below it is full.
#pragma once

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/frame_finder.hpp"
#include "migration/flow/loader.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

class Lifting {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    const Residency& residency;
    Devices& devices;
    AccessGate& gate;
    Loader& loader;
    FrameFinder& finder;
  };
  explicit Lifting(const Parts& parts) : parts_(parts) {}

  // When a host slot comes free. after_transfer: a page was lifted. after_gpu: GPU work uses the
  // pages in host memory, or a transfer in flight may wait for such work. `excluded` is not lifted.
  Attempt lift_one(PageRef excluded);

 private:
  Attempt lift_any(const Page& excluded);
  bool liftable(PageRef ref) const;
  Attempt lift(PageRef ref);

  Parts parts_;
};

}  // namespace vmem::migration
