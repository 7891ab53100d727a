// Recognises scans in the uses of one region: runs of pages at a constant stride, forward or
// backward, per stream, several at a time. Tolerates repeated uses of a page, small skips, and
// turns back to the start of the pass (at the region's end or before it). A scan predicts the next
// pages. A scan that turned once is expected to turn there again.
#pragma once

#include <cstdint>
#include <vector>

#include "migration/policy/reuse_clock.hpp"

namespace vmem::migration {

// A run of pages used together.
struct Run {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::uint16_t stream = 0;
};

struct Scan {
  static constexpr std::int64_t kRegionEnd = -1;
  static constexpr std::uint32_t kConfidentSteps = 2;
  struct Asked {
    std::uint32_t page;
    std::uint32_t overtaken = 0;  // pages requested later that have arrived
  };

  std::uint16_t stream = 0;
  bool cycled = false;      // has turned
  bool changed = false;     // advanced since prefetch last looked
  std::uint32_t run = 0;    // pages per step
  std::uint32_t steps = 0;  // consecutive, with this stride
  std::int64_t head = 0;    // first page of the last run
  std::int64_t stride = 0;
  std::int64_t start = 0;          // of this pass
  std::int64_t start_step = 0;     // from the start of the previous pass (walk over columns: 1)
  std::int64_t turn = kRegionEnd;  // last head before the turn
  Ticks last_advance = 0;
  std::vector<Asked> asked;  // in the order of the requests

  bool confident() const { return steps >= kConfidentSteps; }
  void step_to(const Run& at, std::int64_t region_pages);
  void turn_to(const Run& at, std::int64_t region_pages);
  void restart_stride(const Run& at);
  bool at_region_end(std::int64_t region_pages) const { return !fits(head + stride, region_pages); }
  bool repeats(const Run& at) const;
  bool continues(const Run& at) const;
  bool skips(const Run& at) const;
  bool turns(const Run& at, std::int64_t region_pages) const;
  bool near(const Run& at) const;

  // Calls visit(page) for the next pages, soonest first, until it returns false; at most `limit`.
  template <class Visit>
  void walk(std::int64_t region_pages, std::uint32_t limit, Visit visit) const {
    walk_from(head, cycled, region_pages, limit, visit);
  }
  // The same, but past the last turn, as if the scan did not turn there.
  template <class Visit>
  void walk_past_turn(std::int64_t region_pages, std::uint32_t limit, Visit visit) const {
    walk_from(turn, false, region_pages, limit, visit);
  }

 private:
  static bool fits(std::int64_t page, std::int64_t region_pages) { return page >= 0 && page < region_pages; }
  template <class Visit>
  void walk_from(std::int64_t at, bool turning, std::int64_t region_pages, std::uint32_t limit, Visit& visit) const;
};

class ScanSet {
 public:
  // Records a use. Returns the scan that it advanced, if that one is confident. Invalidates earlier
  // results. Calls `dropped` with a scan that a new one replaces.
  template <class Dropped>
  Scan* observe(const Run& use, std::uint32_t region_pages, Ticks now, Dropped dropped) {
    if (covers_region(use, region_pages)) return nullptr;
    if (Scan* scan = match(use, region_pages)) return moved(*scan, now);
    if (full()) {
      const std::size_t slot = least_useful(now);
      dropped(scans_[slot]);
      scans_.erase(scans_.begin() + std::ptrdiff_t(slot));
    }
    return begin(use, now);
  }
  std::vector<Scan>& all() { return scans_; }

 private:
  static constexpr std::size_t kScans = 8;
  static bool covers_region(const Run& use, std::uint32_t region_pages) {
    return region_pages < 2 || use.count == 0 || use.count > region_pages / 2;
  }
  bool full() const { return scans_.size() >= kScans; }
  Scan* match(const Run& use, std::int64_t region_pages);
  Scan* moved(Scan& scan, Ticks now);
  std::size_t least_useful(Ticks now) const;
  Scan* begin(const Run& use, Ticks now);

  bool repeated_ = false;  // the last match was a repeat, not a step
  bool fresh_ = true;      // no use seen yet
  // The last two uses that began a scan: three at equal distances are a scan with a wide stride.
  std::int64_t begun_[2] = {-1, -1};
  std::vector<Scan> scans_;
};

template <class Visit>
void Scan::walk_from(std::int64_t at, bool turning, std::int64_t region_pages, std::uint32_t limit,
                     Visit& visit) const {
  std::int64_t began = start;
  while (limit > 0) {
    const bool here = turning && turn != kRegionEnd && at == turn;
    at += stride;
    if (here || !fits(at, region_pages)) {
      if (!turning) return;
      at = began += start_step;
      if (!fits(at, region_pages)) return;
    }
    for (std::uint32_t i = 0; i < run && limit > 0 && at + i < region_pages; ++i, --limit)
      if (!visit(std::uint32_t(at + i))) return;
  }
}

}  // namespace vmem::migration
