// Evicts pages from HBM. A page's bytes go to a slot of near memory, unless a copy is current, the
// page was never written, or its contents are of an earlier life. If the GPU could have written to
// a clean page undeclared, the GPU compares the page with its copy first. The mover only.
#pragma once

#include <optional>

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

  // done: the page's frame is free, or the page had none. after_transfer may mean that the GPU now
  // compares the unmapped page with its copy below; if they are equal, Fingerprints::finish frees
  // the frame. On an error the page keeps its frame and may be unmapped. `served`: the page that
  // gets the frame.
  Result<Attempt> evict(PageRef ref, std::optional<PageRef> served = std::nullopt);

 private:
  Status give_up_frame(PageRef ref);

  Parts parts_;
};

}  // namespace vmem::migration
