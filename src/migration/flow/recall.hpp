// Reads pages from below back to host memory. Any use of a page that is only below first recalls
// it. The mover only.
#pragma once

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/direct_reads.hpp"
#include "migration/flow/host_room.hpp"
#include "migration/flow/lifting.hpp"
#include "migration/place/below.hpp"

namespace vmem::migration {

class Recall {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    NearSlots& near;
    Below& below;
    HostRoom& host;
    Lifting& lifting;
    DirectReads& direct;
  };
  explicit Recall(const Parts& parts) : parts_(parts) {}

  // done: nothing to read: the slot is current, or no copy was ever below. after_transfer: a read
  // is or will be in flight. after_gpu: GPU work uses all host slots in place. Errors:
  // OUT_OF_MEMORY (what fills host memory), INTERNAL, those of Below::may_load_now.
  Result<Attempt> recall(PageRef ref, Displaces displaces = Displaces::lifting, Wanted wanted = Wanted::now);
  // False: stop reading ahead for now. True also if there was nothing to do, or its queue is full.
  bool ahead(PageRef ref, Wanted wanted = Wanted::later);
  // Call when nobody waits any more for a page that was read ahead.
  void not_wanted(PageRef ref);

 private:
  enum class Room : std::uint8_t { yes, other_queues, no };
  Room room(PageRef ref, Wanted wanted) const;
  Result<Attempt> need_host_slot(PageRef ref, Displaces displaces);

  Parts parts_;
};

}  // namespace vmem::migration
