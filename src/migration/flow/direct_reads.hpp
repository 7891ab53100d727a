// Direct reads from a file into a frame of HBM, past host memory (GPUDirect Storage). The frame
// becomes the page's only after verification: by the tier for a read-only region's file, otherwise
// by the GPU, which compares the frame with the known fingerprint. The page is then in HBM and
// unmapped; a request or a prefetch maps it. After a failure or a mismatch the page is read through
// host memory, with another try, and verified with the checksum kept when it was spilled.
#pragma once

#include <cstdint>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/fingerprints.hpp"
#include "migration/flow/frame_finder.hpp"
#include "migration/flow/hbm_frames.hpp"
#include "migration/place/below.hpp"
#include "migration/place/contents.hpp"
#include "migration/place/devices.hpp"

namespace vmem::migration {

class DirectReads {
 public:
  struct Parts {
    Core& core;
    Transfers& transfers;
    Devices& devices;
    Below& below;
    Contents& contents;
    const Fingerprints& fingerprints;
    FrameFinder& finder;
  };
  explicit DirectReads(const Parts& parts) : parts_(parts) {}

  // Whether the page can be read directly. Stays true while the read is in flight.
  bool possible(PageRef ref) const;
  // done: the read is in flight. after_gpu: the GPU is verifying it (`checking`), or will free a
  // frame. after_transfer: it cannot start now. never: there is no frame. REQUIRES: possible.
  Result<Attempt> start(PageRef ref, Search search);
  // The page was read, and the GPU compares it with the known fingerprint.
  bool checking(const Page& page) const;
  // The GPU may be full of work that waits for the thread that wants the page. The page is then
  // read through host memory, and the frame discarded.
  void give_up_check(PageRef ref);
  void finish(PageRef ref, std::uint64_t id, const InFlight& transfer, const tiers::Completion& completion);

 private:
  Status submit(PageRef ref, std::uint32_t frame);
  Status check(PageRef ref, const InFlight& arrival);
  void read_failed(PageRef ref, const Error& error);

  Parts parts_;
};

}  // namespace vmem::migration
