// What a launch holds from before it is queued until after.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "migration/streams.hpp"
#include "pagetable/holds.hpp"
#include "pagetable/region.hpp"
#include "runtime/memory/readiness.hpp"

namespace vmem::runtime {

class NamedSpans;

// The caller keeps and reuses the object, so that a launch allocates nothing. Between launches only
// the caller's wishes (the first three members) mean anything; Launches writes the rest.
struct LaunchHolds {
  // Holds each allocation separately even while all fits: for holds that last long.
  bool hold_separately = false;
  // The work cannot use memory in place: copies from and to CUDA arrays, nodes of graphs.
  bool needs_hbm = false;
  // The work reads pointers in what it names, and counts as a launch for pointer tables.
  bool follow_tables = true;
  std::uint32_t what = 0;  // number of the work's name in the trace (trace::Recorder::number_of)

  // How the work reaches an allocation: a parameter names it, or a pointer table may lead to it.
  enum class Source : std::uint8_t { named, table };
  struct Held {
    pagetable::Region* region;
    pagetable::Span span;  // as published (span_of_use)
    std::uint32_t hold;
    std::uint32_t granule;  // in the span
    Source source = Source::named;
    std::uint32_t life = 0;  // see LoggedUse
    PageRun pages() const {
      const std::uint32_t first = region->page_at(span.first());
      return {region, first, region->page_at(span.end() - 1) - first + 1};
    }
  };
  std::vector<Held> held;
  // Addresses that pointer tables may lead to; some may be named as well.
  std::vector<std::uintptr_t> reachable;
  // The hold on everything. `held` then has no holds, and only says what to log.
  std::optional<std::uint32_t> everything;
  bool logs_uses = true;
  pagetable::ThreadSlot* slot = nullptr;
  migration::StreamRecord* record = nullptr;
  std::unique_lock<std::mutex> alone;  // strict mode: excludes other launches
  NamedSpans* named = nullptr;         // the launching thread's

  void clear() {
    held.clear();
    reachable.clear();
    everything.reset();
    if (alone) alone = {};
  }
};

// Whether all memory that the launch names lies in HBM, as the driver's copies require.
bool all_in_hbm(const LaunchHolds& holds);
// Whether some of it is in place for want of HBM: the mover may have some now.
bool wants_frames(const LaunchHolds& holds);

}  // namespace vmem::runtime
