// Pages in HBM whose copy below host memory is current. A load computes the fingerprint of the
// page's bytes, which is that of the copy below, too. From then on the page can be evicted without
// a host slot or a copy: the GPU compares the frame with the fingerprint.
#pragma once

#include "migration/core.hpp"
#include "migration/flow/hbm_frames.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"

namespace vmem::migration {

class Fingerprints {
 public:
  Fingerprints(Core& core, Transfers& transfers, Devices& devices, const NearSlots& near, HbmFrames& frames)
      : core_(core), transfers_(transfers), devices_(devices), near_(near), frames_(frames) {}

  void learn(PageRef ref);  // after a load
  bool comparable(PageRef ref) const;
  bool comparing(const Page& page) const;  // a comparison is in flight
  // REQUIRES: unmapped, its uses complete, comparable. The frame stays the page's until it is
  // verified unchanged.
  Status submit(PageRef ref);
  void finish(PageRef ref, const InFlight& transfer, const tiers::Completion& completion);
  // So many bytes of the page were written by work that did not declare it.
  void found_changed(PageRef ref, std::uint64_t bytes);

 private:
  Core& core_;
  Transfers& transfers_;
  Devices& devices_;
  const NearSlots& near_;
  HbmFrames& frames_;
};

}  // namespace vmem::migration
