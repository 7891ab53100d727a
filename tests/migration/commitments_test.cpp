// Pages that the commitment check accepts are usable: checked on small machines by trying every
// placement of them.
#include "migration/place/commitments.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

namespace vmem::migration {
namespace {

constexpr std::array<int, 3> kSizes{1, 2, 4};
// below, beside: two places below host memory.
enum Memory : int { hbm, host, below, beside };
using Counts = std::array<int, 3>;        // number of pages, by size
using Placement = std::array<Counts, 4>;  // by memory
using Machine = std::array<int, 4>;       // size of each memory

int bytes_of(const Counts& pages) { return pages[0] + 2 * pages[1] + 4 * pages[2]; }

PageSizes sizes_of(const Counts& pages, int wanted) {
  PageSizes sizes{.wanted = std::uint64_t(wanted)};
  sizes.add(sizes.wanted);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    if (pages[i] != 0) sizes.add(std::uint64_t(kSizes[i]));
  }
  return sizes;
}

// A page moves to a neighbouring memory that has room. Every move can be undone, so placements that
// reach each other form a group.
class Moves {
 public:
  Moves(const Machine& machine, const Counts& pages) : machine_(machine) {
    place(pages, {}, 0, 0);
    group_.resize(all_.size());
    std::iota(group_.begin(), group_.end(), std::size_t{0});
    for (const auto& [placement, number] : all_) {
      for (std::size_t size = 0; size < kSizes.size(); ++size) {
        join(placement, number, size, hbm, host);
        join(placement, number, size, host, below);
        join(placement, number, size, host, beside);
      }
    }
  }
  bool any() const { return !all_.empty(); }
  // Whether every page below can reach host memory, from every placement.
  bool everything_comes_up() {
    std::vector<std::array<bool, 3>> comes(all_.size());
    for (const auto& [placement, number] : all_) {
      for (std::size_t size = 0; size < kSizes.size(); ++size)
        comes[root(number)][size] = comes[root(number)][size] || free(placement, host) >= kSizes[size];
    }
    for (const auto& [placement, number] : all_) {
      for (std::size_t size = 0; size < kSizes.size(); ++size) {
        const bool any_below = placement[below][size] != 0 || placement[beside][size] != 0;
        if (any_below && !comes[root(number)][size]) return false;
      }
    }
    return true;
  }

 private:
  // Tries every placement of the remaining pages, from `size` and `memory` on.
  void place(const Counts& rest, Placement placement, std::size_t size, int memory) {
    if (size == kSizes.size()) {
      all_.emplace(placement, all_.size());
      return;
    }
    if (memory == beside) {
      placement[beside][size] = rest[size];
      if (free(placement, beside) >= 0) place(rest, placement, size + 1, hbm);
      return;
    }
    // A page larger than host memory cannot have come here through it.
    if (memory == below && rest[size] != 0 && kSizes[size] > machine_[host]) return;
    Counts left = rest;
    for (int here = 0; here <= rest[size]; ++here) {
      placement[std::size_t(memory)][size] = here;
      left[size] = rest[size] - here;
      if (free(placement, memory) < 0) return;
      place(left, placement, size, memory + 1);
    }
  }
  int free(const Placement& placement, int memory) const {
    return machine_[std::size_t(memory)] - bytes_of(placement[std::size_t(memory)]);
  }
  void join(const Placement& placement, std::size_t number, std::size_t size, int upper, int lower) {
    if (placement[std::size_t(upper)][size] == 0 || free(placement, lower) < kSizes[size]) return;
    Placement moved = placement;
    --moved[std::size_t(upper)][size];
    ++moved[std::size_t(lower)][size];
    group_[root(all_.at(moved))] = root(number);
  }
  std::size_t root(std::size_t number) {
    while (group_[number] != number) number = group_[number] = group_[group_[number]];
    return number;
  }

  const Machine machine_;
  std::map<Placement, std::size_t> all_;
  std::vector<std::size_t> group_;
};

Memories memories_of(const Machine& machine, int committed) {
  return {.devices = {{.hbm_bytes = std::uint64_t(machine[hbm]), .committed_bytes = std::uint64_t(committed)}},
          .lent_bytes = {},
          .host_bytes = std::uint64_t(machine[host]),
          .below = {std::uint64_t(machine[below]), std::uint64_t(machine[beside])}};
}

bool accepted(const Machine& machine, const Counts& pages, int wanted) {
  return !shortfall(memories_of(machine, bytes_of(pages)), sizes_of(pages, wanted));
}

template <class Look>
void for_all_machines(int most, int most_beside, Look look) {
  for (int h = 1; h <= most; ++h) {
    for (int s = 1; s <= most; ++s) {
      for (int b = 0; b <= most; ++b) {
        for (int c = 0; c <= std::min(b, most_beside); ++c) look(Machine{h, s, b, c});
      }
    }
  }
}

// Calls `look` with the largest accepted sets of pages, for every size of the last page. Smaller
// sets leave more room.
template <class Look>
void for_all_accepted(const Machine& machine, Look look) {
  const int all = std::accumulate(machine.begin(), machine.end(), 0);
  Counts pages{};
  for (pages[2] = 0; 4 * pages[2] <= all; ++pages[2]) {
    for (pages[1] = 0; 2 * pages[1] + 4 * pages[2] <= all; ++pages[1]) {
      for (pages[0] = 0; bytes_of(pages) <= all; ++pages[0]) {
        bool any = false;
        for (std::size_t i = 0; i < kSizes.size(); ++i)
          any = any || (pages[i] != 0 && accepted(machine, pages, kSizes[i]));
        if (any) look(pages);
      }
    }
  }
}

void expect_all_accepted_comes_up(const Machine& machine) {
  for_all_accepted(machine, [&](const Counts& pages) {
    if (::testing::Test::HasFailure()) return;
    Moves moves(machine, pages);
    const auto words = [&] {
      return ::testing::Message() << pages[0] << ", " << pages[1] << ", " << pages[2] << " pages of 1, 2 and 4 in "
                                  << machine[hbm] << " of HBM, " << machine[host] << " of host memory, and "
                                  << machine[below] << " and " << machine[beside] << " below";
    };
    EXPECT_TRUE(moves.any()) << words();
    EXPECT_TRUE(moves.everything_comes_up()) << words();
  });
}

TEST(Commitments, WhatIsAcceptedHasAPlaceAndComesUpFromEveryPlacement) {
  for_all_machines(7, 0, expect_all_accepted_comes_up);
}

// Two places below, such as directories, can each be left with a gap.
TEST(Commitments, WhatIsAcceptedComesUpFromTwoPlacesBelow) { for_all_machines(5, 5, expect_all_accepted_comes_up); }

// Each memory has one large page and less free than another large page needs. The sum of the free
// bytes would suffice, but they are in different memories.
TEST(Commitments, PagesThatWouldBeStuckAreRefused) {
  const Machine machine{7, 7, 7, 0};
  EXPECT_TRUE(accepted(machine, {3, 0, 2}, 1));
  EXPECT_FALSE(accepted(machine, {1, 0, 3}, 1));
  EXPECT_FALSE(Moves(machine, {1, 0, 3}).everything_comes_up());
}

TEST(Commitments, PagesOfOneSizeLeaveOneFreeBesideTheTransit) {
  const PageSizes sizes{.wanted = 32, .smallest = 32, .largest = 32};
  const Memories memories{.devices = {{.hbm_bytes = 128}}, .lent_bytes = {}, .host_bytes = 64, .below = {256}};
  EXPECT_EQ(usable_hbm_bytes(128, sizes), 96u);
  EXPECT_EQ(usable_host_and_below_bytes(memories, sizes), 64u + 256u - 32u) << "a quarter would be less than a page";
}

TEST(Commitments, WithNothingBelowNoHoleIsKept) {
  const PageSizes sizes{.wanted = 2, .smallest = 2, .largest = 2};
  const Memories memories{.devices = {{.hbm_bytes = 8}}, .lent_bytes = {}, .host_bytes = 2, .below = {}};
  EXPECT_EQ(usable_host_and_below_bytes(memories, sizes), 2u);
}

TEST(Commitments, OfEachSetOfDevicesTheOverflowFitsIntoWhatItReaches) {
  const PageSizes sizes{.wanted = 1, .smallest = 1, .largest = 1};
  Memories memories{.devices = {{.hbm_bytes = 16, .committed_bytes = 22, .lenders = 1}, {.hbm_bytes = 16}},
                    .lent_bytes = {8},
                    .host_bytes = 8,
                    .below = {}};
  EXPECT_FALSE(shortfall(memories, sizes));
  memories.devices[1].committed_bytes = 12 + 6 + 1;
  const auto missing = shortfall(memories, sizes);
  ASSERT_TRUE(missing) << "what is lent is out of the second one's reach";
  EXPECT_EQ(missing->overflow, 7u);
  EXPECT_EQ(missing->lent, 0u);
}

// However much there is below now.
TEST(Commitments, WhatIsNeededBelowIsEnoughInOnePlace) {
  for_all_machines(7, 0, [](const Machine& machine) {
    const PageSizes sizes{.wanted = 4, .smallest = 1, .largest = 4};
    for (int committed = 0; committed <= 40; ++committed) {
      Memories memories = memories_of(machine, committed);
      if (memories.host_bytes < sizes.largest) continue;  // nothing passes through host memory
      const std::uint64_t needed = needed_below(memories, sizes);
      memories.below = {needed};
      EXPECT_FALSE(shortfall(memories, sizes)) << committed << " need " << needed;
      memories.below.clear();
      EXPECT_EQ(needed == 0, !shortfall(memories, sizes)) << "nothing is asked for without need";
    }
  });
}

TEST(Commitments, CapacityIsWhatAnAllocationGets) {
  for_all_machines(9, 0, [](const Machine& machine) {
    const PageSizes sizes{.wanted = 1, .smallest = 1, .largest = 1};
    for (int committed = 0; accepted(machine, {committed, 0, 0}, 1); ++committed) {
      const auto free = capacity(memories_of(machine, committed), 0, sizes).free_bytes;
      EXPECT_TRUE(accepted(machine, {committed + int(free), 0, 0}, 1));
      EXPECT_FALSE(accepted(machine, {committed + int(free) + 1, 0, 0}, 1));
    }
  });
}

}  // namespace
}  // namespace vmem::migration
