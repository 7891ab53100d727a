// Evicts pages from HBM. A page's bytes go to a slot of near memory, unless a copy is current, the
// page was never written, or its contents are of an earlier life. The mover only.
#pragma once

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/fingerprints.hpp"
#include "migration/flow/hbm_frames.hpp"
#include "migration/flow/host_room.hpp"
#include "migration/flow/loader.hpp"
#include "migration/flow/unread_pages.hpp"
#include "migration/place/contents.hpp"
#include "migration/use/access_gate.hpp"

namespace vmem::migration {

class Evictor {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    Residency& residency;
    Mapper& mapper;
    const Losses& losses;
    NearSlots& near;
    Contents& contents;
    UseTracker& uses;
    AccessGate& gate;
    HbmFrames& frames;
    Fingerprints& fingerprints;
    Loader& loader;
    UnreadPages& unread;
    HostRoom& host;
  };
  explicit Evictor(const Parts& parts) : parts_(parts) {}

  // done: the page's frame is free, or the page had none. after_transfer: among others, the GPU
  // compares the unmapped page with its copy (Fingerprints), and frees the frame if both are equal.
  // On an error the page keeps its frame and may be unmapped. `excluded`: see SlotWish.
  Result<Attempt> evict(PageRef ref, const Page* excluded = nullptr);

 private:
  Status give_up_frame(PageRef ref);

  Parts parts_;
};

}  // namespace vmem::migration
