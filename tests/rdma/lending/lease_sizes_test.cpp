#include "rdma/lending/remote_tier/lease_sizes.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "rdma/lending/remote_tier/lent_room.hpp"

namespace vmem::rdma {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
using Lendable = CopyPlacer::Lendable;
constexpr std::array<std::uint32_t, wire::kMedia.size()> kDiskLast{0, 1, 0};

Lendable lender(const wire::MediumBytes& obtainable) {
  return {.usable = {}, .free = {}, .obtainable = obtainable, .levels = kDiskLast};
}
std::uint64_t sum(const std::vector<wire::MediumBytes>& all) {
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0},
                         [](std::uint64_t bytes, const auto& each) { return bytes + each.sum(); });
}

TEST(LeaseSizes, NothingIsLeasedForNothing) {
  EXPECT_EQ(sum(lease_sizes(std::vector{lender({.memory = kGiB})}, 0, 1)), 0u);
  EXPECT_TRUE(lease_sizes({}, kGiB, 1).empty());
}

TEST(LeaseSizes, NodesHaveEqualSharesAndWhoHasLessGivesAll) {
  const std::vector lenders{lender({.memory = 4 * kGiB}), lender({.memory = 64 * kMiB}), lender({.memory = 8 * kGiB})};
  const auto sizes = lease_sizes(lenders, 2 * kGiB + 64 * kMiB, 1);
  EXPECT_EQ(sizes[0].memory, kGiB);
  EXPECT_EQ(sizes[1].memory, 64 * kMiB);
  EXPECT_EQ(sizes[2].memory, kGiB);
}

TEST(LeaseSizes, DisksComeLastUnlessTheyAreMeasuredToBeAsFast) {
  std::vector lenders{lender({.memory = kGiB, .disk = 8 * kGiB}), lender({.memory = kGiB, .hbm = kGiB})};
  auto sizes = lease_sizes(lenders, 3 * kGiB, 1);
  EXPECT_EQ(sizes[0], (wire::MediumBytes{.memory = kGiB}));
  EXPECT_EQ(sizes[1], (wire::MediumBytes{.memory = kGiB, .hbm = kGiB}));
  sizes = lease_sizes(lenders, 5 * kGiB, 1);
  EXPECT_EQ(sizes[0], (wire::MediumBytes{.memory = kGiB, .disk = 2 * kGiB}));
  lenders[0].levels = {0, 0, 0};
  EXPECT_EQ(lease_sizes(lenders, 4 * kGiB, 1)[0], (wire::MediumBytes{.memory = kGiB, .disk = kGiB}));
}

// Else two copies might have one node only.
TEST(LeaseSizes, WithTwoCopiesNodesHaveEqualSharesWhateverTheirMedia) {
  const std::vector lenders{lender({.memory = 64 * kGiB}), lender({.disk = 64 * kGiB})};
  const auto sizes = lease_sizes(lenders, 8 * kGiB, 2);
  EXPECT_EQ(sizes[0], (wire::MediumBytes{.memory = 8 * kGiB}));
  EXPECT_EQ(sizes[1], (wire::MediumBytes{.disk = 8 * kGiB}));
}

TEST(LeaseSizes, WhatIsNeededIsLeasedAsFarAsItIsThereAndLittleMore) {
  std::mt19937_64 random(1);
  for (int turn = 0; turn < 5'000; ++turn) {
    std::vector<Lendable> lenders;
    std::uint64_t there = 0;
    for (std::uint64_t i = random() % 5 + 1; i != 0; --i) {
      const auto any = [&] { return random() % 3 == 0 ? 0 : random() % 512 * 2 * kMiB; };
      Lendable& each = lenders.emplace_back(lender({any(), any(), any()}));
      for (auto& level : each.levels) level = std::uint32_t(random() % 3);
      each.usable = {.memory = any() / 2, .disk = any() / 2};
      there += each.usable.sum() + each.obtainable.sum();
    }
    const std::uint64_t need = random() % (there + kGiB);
    const auto sizes = lease_sizes(lenders, need, 1);
    EXPECT_GE(sum(sizes), std::min(need, there));
    EXPECT_LE(sum(sizes), std::min(there, need + need / 4 + lenders.size() * 3 * 64 * kMiB));
    for (std::size_t i = 0; i < lenders.size(); ++i)
      for (const wire::Medium medium : wire::kMedia)
        EXPECT_LE(sizes[i][medium], lenders[i].usable[medium] + lenders[i].obtainable[medium]);
  }
}

TEST(LeaseSizes, OfTwoCopiesNoNodeHasMoreThanTheOthersCanMatch) {
  const auto sizes = lease_sizes(std::vector{lender({.memory = 8 * kGiB}), lender({.memory = kGiB})}, 4 * kGiB, 2);
  EXPECT_LE(sizes[0].memory, kGiB + 256 * kMiB);
  EXPECT_EQ(sizes[1].memory, kGiB);
  EXPECT_EQ(sum(lease_sizes(std::vector{lender({.memory = 8 * kGiB}), lender({})}, kGiB, 2)), 0u);
  EXPECT_EQ(sum(lease_sizes(std::vector{lender({.memory = 8 * kGiB})}, kGiB, 2)), kGiB) << "single copies";
}

// Pages lie in every second place at the end, and one after a large hole.
TEST(LentRoom, TheLargestHoleIsReturnedFirstOfThoseThatSplitAnExtent) {
  constexpr std::uint64_t kPage = 2 * kMiB;
  LentRoom room;
  room.begin({.lease = 1, .bytes = {.memory = 1000 * kPage}, .memory = {{0, 1000 * kPage}}}, 1);
  Extents& free = room.part(wire::Medium::memory).room;
  for (std::uint64_t page = 900; page < 1000; page += 2) free.take_at({page * kPage, kPage});
  free.take_at({0, kPage});
  const auto taken = room.take_out({});
  ASSERT_EQ(taken.size(), wire::kMostExtents);
  EXPECT_EQ(taken.at(0), (Extent{999 * kPage, kPage})) << "it splits nothing";
  EXPECT_EQ(taken.at(1), (Extent{kPage, 899 * kPage}));
  EXPECT_EQ(room.part(wire::Medium::memory).leased.count(), wire::kMostExtents);
  EXPECT_TRUE(room.take_out({}).empty());
}

TEST(LentRoom, WhatIsLeftOfAFreeExtentIsNotSplit) {
  constexpr std::uint64_t kPage = 2 * kMiB;
  LentRoom room;
  room.begin({.lease = 1, .bytes = {.memory = 10 * kPage}, .memory = {{0, 10 * kPage}}}, 1);
  room.part(wire::Medium::memory).room.take_at({8 * kPage, 2 * kPage});
  EXPECT_EQ(room.take_out({.memory = 7 * kPage}), (std::vector<Extent>{{0, 3 * kPage}}));
  EXPECT_EQ(room.part(wire::Medium::memory).leased.count(), 1u);
}

TEST(LeaseSizes, ASurplusIsMoreThanTheStepsOfGrowth) {
  EXPECT_FALSE(is_surplus(kGiB, kGiB));
  EXPECT_FALSE(is_surplus(kGiB + 128 * kMiB, kGiB));
  EXPECT_TRUE(is_surplus(2 * kGiB, kGiB));
  EXPECT_FALSE(is_surplus(2 * kMiB, 0)) << "a page";
  EXPECT_TRUE(is_surplus(4 * kMiB, 0));
}

}  // namespace
}  // namespace vmem::rdma
