#include "cluster/enrollment/free_slices.hpp"

#include <algorithm>

namespace vmem::cluster {

FreeSlices::FreeSlices(std::uint32_t slices, const std::set<Slice>& taken, const std::set<Slice>& strays) {
  std::uint32_t at = 0;
  const auto end_run = [&](std::uint32_t end) {
    if (at < end) runs_.push_back({.first = at, .count = end - at});
  };
  for (const Slice slice : taken) {
    const auto barrier = static_cast<std::uint32_t>(slice);
    if (barrier >= slices) break;
    end_run(barrier);
    at = barrier + 1;
  }
  end_run(slices);
  for (const Slice slice : strays) strays_.push_back(static_cast<std::uint32_t>(slice));
}

std::uint32_t FreeSlices::strays_within(std::uint32_t first, std::uint32_t count) const {
  const auto begin = std::ranges::lower_bound(strays_, first);
  return static_cast<std::uint32_t>(std::ranges::lower_bound(strays_, first + count) - begin);
}

std::optional<Slice> FreeSlices::choose(std::uint32_t count) const {
  std::optional<Run> best;  // its count is that of strays
  const auto offer = [&](std::uint32_t first) {
    const std::uint32_t strays = strays_within(first, count);
    if (!best || strays > best->count || (strays == best->count && first < best->first))
      best = Run{.first = first, .count = strays};
  };
  for (const Run& run : runs_) {
    if (run.count < count) continue;
    offer(run.first);
    // The lowest choice with most strays ends with one, or begins with the run: it could be moved
    // down otherwise.
    for (const std::uint32_t stray : strays_)
      if (run.first + count <= stray + 1 && stray < run.first + run.count) offer(stray + 1 - count);
  }
  return best ? std::optional(Slice{best->first}) : std::nullopt;
}

std::uint32_t FreeSlices::total() const noexcept {
  std::uint32_t sum = 0;
  for (const Run& run : runs_) sum += run.count;
  return sum;
}

FreeSlices::Run FreeSlices::longest() const noexcept {
  const auto longest = std::ranges::max_element(runs_, {}, &Run::count);
  return longest == runs_.end() ? Run{} : *longest;
}

}  // namespace vmem::cluster
