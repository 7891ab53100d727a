// Chooses adjacent slices. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "cluster/enrollment/enrollment_events.hpp"

namespace vmem::cluster {

class FreeSlices {
 public:
  // Of `slices` in all. `strays` are free for this node only: the registry has them under its name,
  // and it does not hold them.
  FreeSlices(std::uint32_t slices, const std::set<Slice>& taken, const std::set<Slice>& strays);

  // The first of `count` adjacent free ones: as many strays as possible among them, then the lowest
  // ones. None: there are not as many in a row.
  std::optional<Slice> choose(std::uint32_t count) const;
  std::uint32_t total() const noexcept;
  // The lowest of the longest runs; 0, 0: nothing is free.
  struct Run {
    std::uint32_t first = 0, count = 0;
  };
  Run longest() const noexcept;

 private:
  std::uint32_t strays_within(std::uint32_t first, std::uint32_t count) const;

  std::vector<Run> runs_;              // the longest possible, in order
  std::vector<std::uint32_t> strays_;  // in order
};

}  // namespace vmem::cluster
