#include "rdma/lending/extents.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace vmem::rdma {
namespace {

TEST(Extents, WhatIsGivenNeverOverlapsAndComesTogetherAgain) {
  constexpr std::uint64_t kBytes = 1000;
  Extents extents(50, kBytes);
  std::map<std::uint64_t, std::uint64_t> taken;
  std::mt19937_64 random(3);
  for (int turn = 0; turn < 20'000; ++turn) {
    if (random() % 2 == 0) {
      const std::uint64_t bytes = 1 + random() % 60;
      const auto first = extents.take(bytes);
      if (!first) {
        EXPECT_LT(extents.largest_bytes(), bytes);
        continue;
      }
      const auto next = taken.lower_bound(*first);
      EXPECT_TRUE(next == taken.end() || next->first >= *first + bytes);
      EXPECT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= *first);
      EXPECT_TRUE(*first >= 50 && *first + bytes <= 50 + kBytes);
      taken.emplace(*first, bytes);
    } else if (!taken.empty()) {
      const auto each = std::next(taken.begin(), long(random() % taken.size()));
      extents.give_back(each->first, each->second);
      taken.erase(each);
    }
  }
  for (const auto& [first, bytes] : taken) extents.give_back(first, bytes);
  EXPECT_EQ(extents.free_bytes(), kBytes);
  EXPECT_EQ(extents.largest_bytes(), kBytes);
}

}  // namespace
}  // namespace vmem::rdma
