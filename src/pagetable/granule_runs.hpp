// A set of granules, kept as its longest runs. Takes runs best fit; runs that touch are merged.
// One thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace vmem::pagetable {

class GranuleRuns {
 public:
  // REQUIRES: none of them is in the set.
  void insert(std::uint32_t first, std::uint32_t count);
  // REQUIRES: contains(first, count).
  void erase(std::uint32_t first, std::uint32_t count);
  // Erases `count` granules, the first a multiple of `align` when counted from `origin` granules
  // before granule 0, out of the shortest run that has room. Returns the first; none: no room.
  // REQUIRES: align is a power of two.
  std::optional<std::uint32_t> take(std::uint32_t count, std::uint32_t align, std::uint64_t origin);

  bool contains(std::uint32_t first, std::uint32_t count) const;  // all of them
  bool overlaps(std::uint32_t first, std::uint32_t count) const;  // any of them
  std::uint64_t total() const noexcept { return total_; }
  std::uint32_t longest() const noexcept { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }

 private:
  using Runs = std::map<std::uint32_t, std::uint32_t>;  // first → length
  // The run that has the granule, or the end.
  Runs::const_iterator run_at(std::uint32_t granule) const;
  void put(std::uint32_t first, std::uint32_t count);
  Runs::const_iterator drop(Runs::const_iterator run);

  Runs by_first_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> by_length_;  // length, first
  std::uint64_t total_ = 0;
};

}  // namespace vmem::pagetable
