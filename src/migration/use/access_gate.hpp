// Takes away the GPU's access to pages. The order makes it safe: first the state word, then the
// holds, then the use logs, then the streams. The mover only.
#pragma once

#include <cstdint>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/page/mapper.hpp"
#include "migration/page/residency.hpp"
#include "migration/page/transfers.hpp"
#include "migration/use/use_tracker.hpp"

namespace vmem::migration {

class AccessGate {
 public:
  AccessGate(Core& core, const Transfers& transfers, Residency& residency, Mapper& mapper, UseTracker& uses)
      : core_(core), transfers_(transfers), residency_(residency), mapper_(mapper), uses_(uses) {}

  // `own_holds`: how many of the page's holds are the caller's own; they do not count. done:
  // nobody else holds it. after_gpu: a launch that holds everything is about to be queued, and
  // clears its hold in a moment.
  Attempt held(PageRef ref, std::uint32_t own_holds = 0) const;
  // done: nobody uses the page through its mapping, or can begin to. Otherwise its state word is as
  // before; meanwhile it allowed no access, and kPending was clear. REQUIRES: use tracking is on.
  Attempt withdraw(PageRef ref, std::uint32_t own_holds = 0);
  // Unmaps the page if nobody uses it. Moves no bytes.
  Result<Attempt> hide(PageRef ref, std::uint32_t own_holds = 0);

 private:
  Core& core_;
  const Transfers& transfers_;
  Residency& residency_;
  Mapper& mapper_;
  UseTracker& uses_;
};

}  // namespace vmem::migration
