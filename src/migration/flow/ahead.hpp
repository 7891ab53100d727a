// Work that nobody waits for: prefetch, promotion of pages used in place, and eviction ahead.
#pragma once

#include <cstdint>
#include <deque>

#include "migration/attempt.hpp"
#include "migration/core.hpp"
#include "migration/flow/direct_reads.hpp"
#include "migration/flow/evictor.hpp"
#include "migration/flow/frame_finder.hpp"
#include "migration/flow/loader.hpp"
#include "migration/flow/recall.hpp"
#include "migration/use/access_gate.hpp"
#include "migration/use/promotions.hpp"

namespace vmem::migration {

class Ahead {
 public:
  struct Parts {
    Core& core;
    const Transfers& transfers;
    Devices& devices;
    const Below& below;
    UseTracker& uses;
    AccessGate& gate;
    Promotions& promotions;
    Loader& loader;
    Evictor& evictor;
    FrameFinder& finder;
    DirectReads& direct;
    Recall& recall;
  };
  explicit Ahead(const Parts& parts) : parts_(parts) {}

  void ask(PageRef ref) { asked_.push_back(ref); }  // vmem_prefetch
  bool asked() const { return !asked_.empty(); }
  void forget_asked() { asked_.clear(); }
  void prefetch();
  void promote();
  bool waits() const { return plan_waits_; }  // prefetches or evictions wait for progress
  void forget(const Region& region);

 private:
  void follow_plan(Device& device);
  void plan_more(Device& device);
  void evict_ahead(Device& device);
  // done: fetched, or nothing to fetch. after_transfer: being read to host memory or a frame.
  // Otherwise there is no frame. An error is logged.
  Result<Attempt> start(PageRef ref);
  Result<Attempt> try_to_start(PageRef ref);
  Result<Attempt> read_from_below(PageRef ref);
  Result<Attempt> promote_one(PageRef ref);

  Parts parts_;
  std::deque<PageRef> asked_;
  bool plan_waits_ = false;
  std::uint64_t prefetch_failures_ = 0;  // logged at every power of two
};

}  // namespace vmem::migration
