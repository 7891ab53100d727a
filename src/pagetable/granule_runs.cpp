#include "pagetable/granule_runs.hpp"

#include <iterator>

namespace vmem::pagetable {

GranuleRuns::Runs::const_iterator GranuleRuns::run_at(std::uint32_t granule) const {
  const auto after = by_first_.upper_bound(granule);
  if (after == by_first_.begin()) return by_first_.end();
  const auto run = std::prev(after);
  return granule - run->first < run->second ? run : by_first_.end();
}

void GranuleRuns::put(std::uint32_t first, std::uint32_t count) {
  if (count == 0) return;
  by_first_.emplace(first, count);
  by_length_.emplace(count, first);
  total_ += count;
}

GranuleRuns::Runs::const_iterator GranuleRuns::drop(Runs::const_iterator run) {
  by_length_.erase({run->second, run->first});
  total_ -= run->second;
  return by_first_.erase(run);
}

void GranuleRuns::insert(std::uint32_t first, std::uint32_t count) {
  auto next = by_first_.lower_bound(first);
  if (next != by_first_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == first) {
      first = previous->first;
      count += previous->second;
      drop(previous);
    }
  }
  if (next != by_first_.end() && first + count == next->first) {
    count += next->second;
    drop(next);
  }
  put(first, count);
}

void GranuleRuns::erase(std::uint32_t first, std::uint32_t count) {
  const auto run = run_at(first);
  const std::uint32_t run_first = run->first, run_end = run->first + run->second;
  drop(run);
  put(run_first, first - run_first);
  put(first + count, run_end - (first + count));
}

std::optional<std::uint32_t> GranuleRuns::take(std::uint32_t count, std::uint32_t align, std::uint64_t origin) {
  for (auto run = by_length_.lower_bound({count, 0}); run != by_length_.end(); ++run) {
    const auto [length, run_first] = *run;
    const std::uint32_t misaligned = std::uint32_t(origin + run_first) & (align - 1);
    const std::uint32_t skip = misaligned == 0 ? 0 : align - misaligned;
    if (std::uint64_t{skip} + count > length) continue;
    erase(run_first + skip, count);
    return run_first + skip;
  }
  return std::nullopt;
}

bool GranuleRuns::contains(std::uint32_t first, std::uint32_t count) const {
  const auto run = run_at(first);
  return run != by_first_.end() && std::uint64_t{first} + count <= std::uint64_t{run->first} + run->second;
}

bool GranuleRuns::overlaps(std::uint32_t first, std::uint32_t count) const {
  if (count != 0 && run_at(first) != by_first_.end()) return true;
  const auto next = by_first_.lower_bound(first);
  return next != by_first_.end() && next->first - first < count;
}

}  // namespace vmem::pagetable
