#include "migration/policy/scan.hpp"

#include <cstdlib>

namespace vmem::migration {

bool Scan::repeats(const Run& at) const {
  return at.first == head || (at.first >= head && std::int64_t(at.first) + at.count <= head + run);
}

bool Scan::continues(const Run& at) const { return steps > 0 && at.first == head + stride; }

// The scan left out a few steps: another stream used them, or none did.
bool Scan::skips(const Run& at) const {
  if (!confident()) return false;
  const std::int64_t moved = at.first - head;
  return moved % stride == 0 && moved / stride > 1 && moved / stride <= 4;
}

bool Scan::turns(const Run& at, std::int64_t region_pages) const {
  if (!confident()) return false;
  if (at.first == start && at.first != head) return true;
  if (!at_region_end(region_pages)) return false;
  const std::int64_t reach = std::max<std::int64_t>(std::abs(stride), run);
  return stride > 0 ? at.first < reach : std::int64_t(at.first) + at.count > region_pages - reach;
}

bool Scan::near(const Run& at) const { return std::abs(at.first - head) <= 4 * std::int64_t(std::max(run, at.count)); }

void Scan::step_to(const Run& at, std::int64_t region_pages) {
  if (turn != kRegionEnd && head == turn) {  // it passed its earlier turn
    turn = kRegionEnd;
    cycled = false;
  }
  head = at.first;
  if (std::int64_t(at.first) + at.count < region_pages) run = at.count;  // the last may be shorter
  ++steps;
}

void Scan::turn_to(const Run& at, std::int64_t region_pages) {
  turn = at_region_end(region_pages) ? kRegionEnd : head;
  start_step = at.first - start;
  start = head = at.first;
  run = at.count;
  cycled = true;
  ++steps;
}

void Scan::restart_stride(const Run& at) {
  start = head;
  stride = at.first - head;
  start_step = 0;
  turn = kRegionEnd;
  cycled = false;
  steps = 1;
  head = at.first;
  run = at.count;
}

Scan* ScanSet::match(const Run& use, std::int64_t region_pages) {
  repeated_ = false;
  const auto find = [&](auto test) -> Scan* {
    for (auto scan = scans_.rbegin(); scan != scans_.rend(); ++scan)
      if (scan->stream == use.stream && test(*scan)) return &*scan;
    return nullptr;
  };
  if (Scan* scan = find([&](Scan& s) { return s.continues(use); })) return scan->step_to(use, region_pages), scan;
  if (Scan* scan = find([&](Scan& s) { return s.repeats(use); })) return repeated_ = true, scan;
  if (Scan* scan = find([&](Scan& s) { return s.turns(use, region_pages); }))
    return scan->turn_to(use, region_pages), scan;
  if (Scan* scan = find([&](Scan& s) { return s.skips(use); })) return scan->step_to(use, region_pages), scan;
  // Only an uncertain scan changes its stride; a use next to a confident one may begin another
  // scan.
  if (Scan* scan = find([&](Scan& s) { return !s.confident() && s.near(use); })) return scan->restart_stride(use), scan;
  return nullptr;
}

Scan* ScanSet::moved(Scan& scan, Ticks now) {
  scan.last_advance = now;
  if (repeated_) return nullptr;
  // A new region read from its first page: one step is enough evidence.
  if (scan.steps == 1 && fresh_ && scan.start == 0 && scan.stride == scan.run) ++scan.steps;
  fresh_ = false;
  if (!scan.confident()) return nullptr;
  scan.changed = true;
  return &scan;
}

std::size_t ScanSet::least_useful(Ticks now) const {
  std::size_t worst = 0;
  const auto uselessness = [&](const Scan& scan) {
    return std::uint64_t(!scan.confident()) << 32 | Ticks(now - scan.last_advance);
  };
  for (std::size_t i = 1; i < scans_.size(); ++i)
    if (uselessness(scans_[i]) > uselessness(scans_[worst])) worst = i;
  return worst;
}

Scan* ScanSet::begin(const Run& use, Ticks now) {
  Scan scan;
  scan.stream = use.stream;
  scan.run = use.count;
  scan.head = scan.start = use.first;
  scan.last_advance = now;
  const std::int64_t stride = std::int64_t(use.first) - begun_[0];
  if (begun_[1] >= 0 && stride != 0 && stride == begun_[0] - begun_[1]) {
    scan.stride = stride;
    scan.start = begun_[1];
    scan.steps = Scan::kConfidentSteps;
  }
  begun_[1] = begun_[0];
  begun_[0] = use.first;
  fresh_ = fresh_ && scans_.empty() && use.first == 0;
  scans_.push_back(std::move(scan));
  if (!scans_.back().confident()) return nullptr;
  scans_.back().changed = true;
  return &scans_.back();
}

}  // namespace vmem::migration
