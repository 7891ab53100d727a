#include "tiers/hbm/hbm_space.hpp"

#include <algorithm>
#include <iterator>

namespace vmem::tiers {

HbmSpace::HbmSpace(const std::vector<std::uint32_t>& slabs) {
  for (const std::uint32_t granules : slabs)
    slabs_.push_back({.granules = granules, .free_count = granules, .free = {{0, granules}}});
}

// One run if there is one, for one copy; else as many as it takes.
std::optional<GranuleRuns> HbmSpace::take(std::uint64_t granules) {
  if (granules == 0 || granules > free_granules()) return std::nullopt;
  for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    if (!slabs_[slab].takes_pages()) continue;
    auto& free = slabs_[slab].free;
    const auto fits = std::ranges::find_if(free, [&](const auto& run) { return run.second >= granules; });
    if (fits != free.end()) return GranuleRuns{take_from(slab, fits, static_cast<std::uint32_t>(granules))};
  }
  GranuleRuns runs;
  for (std::uint32_t slab = 0; slab < slabs_.size(); ++slab) {
    auto& free = slabs_[slab].free;
    while (slabs_[slab].takes_pages() && granules != 0 && !free.empty()) {
      const auto count = static_cast<std::uint32_t>(std::min<std::uint64_t>(granules, free.begin()->second));
      runs.push_back(take_from(slab, free.begin(), count));
      granules -= count;
    }
  }
  return runs;
}

GranuleRun HbmSpace::take_from(std::uint32_t slab, std::map<std::uint32_t, std::uint32_t>::iterator run,
                               std::uint32_t count) {
  Slab& from = slabs_[slab];
  const auto [first, there] = *run;
  from.free.erase(run);
  if (there > count) from.free.emplace(first + count, there - count);
  from.free_count -= count;
  return {slab, first, count};
}

void HbmSpace::give_back(const GranuleRuns& runs) {
  for (const GranuleRun& run : runs) {
    Slab& to = slabs_[run.slab];
    to.free_count += run.count;
    std::uint32_t first = run.first, count = run.count;
    auto next = to.free.lower_bound(first);
    if (next != to.free.end() && first + count == next->first) {
      count += next->second;
      next = to.free.erase(next);
    }
    const auto before = next == to.free.begin() ? to.free.end() : std::prev(next);
    if (before != to.free.end() && before->first + before->second == first) {
      before->second += count;
    } else {
      to.free.emplace(first, count);
    }
  }
}

std::uint64_t HbmSpace::limit(std::uint64_t granules) {
  std::uint64_t kept = 0;
  bool in_use = true;
  for (Slab& slab : slabs_) {
    in_use = in_use && slab.granules <= granules - kept;
    slab.in_use = in_use;
    kept += in_use ? slab.granules : 0;
  }
  return kept;
}

std::optional<std::uint32_t> HbmSpace::lacks_memory() const {
  const auto found = std::ranges::find_if(slabs_, [](const Slab& slab) { return slab.in_use && !slab.has_memory; });
  if (found == slabs_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - slabs_.begin());
}

std::optional<std::uint32_t> HbmSpace::is_superfluous() const {
  const auto found = std::ranges::find_if(
      slabs_, [](const Slab& slab) { return !slab.in_use && slab.has_memory && slab.free_count == slab.granules; });
  if (found == slabs_.end()) return std::nullopt;
  return static_cast<std::uint32_t>(found - slabs_.begin());
}

bool HbmSpace::is_limited() const {
  return std::ranges::any_of(slabs_, [](const Slab& slab) { return !slab.in_use && slab.has_memory; });
}

std::uint64_t HbmSpace::memory_granules() const {
  std::uint64_t all = 0;
  for (const Slab& slab : slabs_) all += slab.has_memory ? slab.granules : 0;
  return all;
}

std::uint64_t HbmSpace::usable_granules() const {
  std::uint64_t all = 0;
  for (const Slab& slab : slabs_) all += slab.takes_pages() ? slab.granules : 0;
  return all;
}

std::uint64_t HbmSpace::free_granules() const {
  std::uint64_t all = 0;
  for (const Slab& slab : slabs_) all += slab.takes_pages() ? slab.free_count : 0;
  return all;
}

}  // namespace vmem::tiers
