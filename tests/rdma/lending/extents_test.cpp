#include "rdma/lending/extents.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <vector>

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

// The same operations on a set of numbers.
TEST(Extents, TheSetIsWhatWasGivenAndNotTaken) {
  constexpr std::uint64_t kBytes = 60;
  Extents extents;
  std::vector<bool> model(kBytes + 1);
  std::mt19937_64 random(5);
  const auto any = [&] {
    const std::uint64_t first = random() % kBytes;
    return Extent{first, 1 + random() % (kBytes - first)};
  };
  for (int turn = 0; turn < 20'000; ++turn) {
    const Extent extent = any();
    const auto count = std::count(model.begin() + long(extent.first), model.begin() + long(extent.end()), true);
    EXPECT_EQ(extents.contains(extent), std::uint64_t(count) == extent.bytes);
    if (extents.contains(extent)) {
      extents.take_at(extent);
      std::fill(model.begin() + long(extent.first), model.begin() + long(extent.end()), false);
    } else {
      std::uint64_t added = 0;
      for (const Extent& each : extents.missing_of(extent)) {
        EXPECT_TRUE(std::none_of(model.begin() + long(each.first), model.begin() + long(each.end()), std::identity()));
        extents.give_back(each);
        added += each.bytes;
      }
      EXPECT_EQ(added, extent.bytes - std::uint64_t(count));
      std::fill(model.begin() + long(extent.first), model.begin() + long(extent.end()), true);
    }
    EXPECT_EQ(extents.free_bytes(), std::uint64_t(std::count(model.begin(), model.end(), true)));
    std::uint64_t at = 0, largest = 0;
    for (const Extent& each : extents.all()) {
      EXPECT_TRUE(each.first > at || at == 0) << "extents touch";
      at = each.end();
      largest = std::max(largest, each.bytes);
    }
    EXPECT_EQ(extents.largest_bytes(), largest);
    const std::uint64_t from = random() % kBytes;
    const auto gap = std::find(model.begin() + long(from), model.end(), false);
    EXPECT_EQ(extents.bytes_from(from), std::uint64_t(gap - model.begin()) - from);
  }
}

}  // namespace
}  // namespace vmem::rdma
