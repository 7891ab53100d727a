// Requirements on every Policy. A policy instantiates the suite in its own test program:
//
//   #include "migration/policy/policy_conformance.hpp"
//   INSTANTIATE_TEST_SUITE_P(SecondChance, PolicyConformance,
//                            ::testing::Values(PolicyMaker([] { return make(); })));
//
// The maker's policies have room for 64 pages of 2 MiB on each of devices 0 and 1. The program
// links vmem_policy_tools.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <vector>

#include "migration/policy/allocation_counter.hpp"
#include "migration/policy/policy.hpp"

namespace vmem::migration {

// What GoogleTest prints of a parameter, instead of the function's address.
inline void PrintTo(const std::function<std::unique_ptr<Policy>()>&, std::ostream* out) { *out << "policy"; }

}  // namespace vmem::migration

namespace vmem::migration::testing {

using PolicyMaker = std::function<std::unique_ptr<Policy>()>;

class PolicyConformance : public ::testing::TestWithParam<PolicyMaker> {
 protected:
  static constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
  static constexpr std::uint32_t kFrames = 64;

  void begin(std::uint32_t region, std::uint32_t pages, std::uint64_t page_bytes = kPage, int device = 0) {
    policy->region_begins({.id = {region}, .pages = pages, .page_bytes = page_bytes, .device = device});
  }
  void use(std::uint32_t region, std::uint32_t first, std::uint32_t count = 1) {
    policy->used({.region = {region}, .first = first, .count = count});
  }
  void bring(std::uint32_t region, std::uint32_t first, std::uint32_t count) {
    use(region, first, count);
    for (std::uint32_t i = 0; i < count; ++i) policy->page_arrived({{region}, first + i}, Cause::use);
  }
  std::vector<PageId> victims(std::size_t most = 256, std::uint64_t page_bytes = kPage, int device = 0,
                              bool again = false) {
    std::vector<PageId> pages(most);
    const VictimQuery query{.device = device, .page_bytes = page_bytes, .bytes_wanted = page_bytes, .again = again};
    pages.resize(policy->victims(query, pages));
    return pages;
  }
  std::vector<PageId> prefetches(std::uint64_t bytes, int device = 0) {
    std::vector<PageId> pages(256);
    pages.resize(policy->prefetches({.device = device, .bytes_room = bytes}, pages));
    return pages;
  }

  std::unique_ptr<Policy> policy = GetParam()();
};

TEST_P(PolicyConformance, OffersEveryResidentPageOnceWhenAllAreWanted) {
  begin(1, 50);
  begin(2, 10, 2 * kPage);
  bring(1, 5, 20);
  bring(2, 0, 10);
  std::set<PageId> expected, offered;
  for (std::uint32_t i = 5; i < 25; ++i) expected.insert({{1}, i});
  for (std::uint32_t i = 0; i < 10; ++i) expected.insert({{2}, i});
  const auto pages = victims();
  offered.insert(pages.begin(), pages.end());
  EXPECT_EQ(pages.size(), offered.size());
  EXPECT_EQ(offered, expected);
}

TEST_P(PolicyConformance, ALargerQueryBeginsWithTheAnswerToASmallerOne) {
  begin(1, 50);
  bring(1, 0, 50);
  const auto all = victims();
  for (const std::size_t most : {0u, 1u, 7u, 49u, 50u}) {
    const auto some = victims(most);
    ASSERT_EQ(some.size(), most);
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
  PageId page[1];
  EXPECT_EQ(policy->victims({.page_bytes = kPage, .bytes_wanted = 0}, page), 0u);
}

TEST_P(PolicyConformance, RefusedPagesDoNotStarveTheQuery) {
  begin(1, 50);
  bring(1, 0, 50);
  std::vector<PageId> offered = victims(1);
  while (offered.size() < 100) {
    const auto next = victims(1, kPage, 0, true);
    if (next.empty()) break;
    offered.push_back(next[0]);
  }
  // Queries for one page each, with no victim taken, keep the order of a single query.
  EXPECT_EQ(offered, victims());
}

TEST_P(PolicyConformance, ANewQueryOffersRefusedPagesAgain) {
  begin(1, 10);
  bring(1, 0, 10);
  const auto best = victims(1);
  victims(5, kPage, 0, true);
  EXPECT_EQ(victims(1), best);
}

TEST_P(PolicyConformance, PagesThatLeftOrEndedAreNotOffered) {
  begin(1, 10);
  begin(2, 10);
  bring(1, 0, 10);
  bring(2, 0, 10);
  policy->page_left({{1}, 3});
  policy->region_ends({2});
  const auto pages = victims();
  EXPECT_EQ(pages.size(), 9u);
  for (const PageId page : pages) EXPECT_TRUE(page.region.value == 1 && page.index != 3);
}

TEST_P(PolicyConformance, DevicesAreApart) {
  begin(1, 10, kPage, 0);
  begin(2, 10, kPage, 1);
  bring(1, 0, 10);
  bring(2, 0, 10);
  for (const PageId page : victims(256, kPage, 1)) EXPECT_EQ(page.region.value, 2u);
  EXPECT_EQ(victims(256, kPage, 7).size(), 0u);
  for (const PageId page : prefetches(UINT64_MAX, 1)) EXPECT_EQ(page.region.value, 2u);
  EXPECT_EQ(prefetches(UINT64_MAX, 7).size(), 0u);
}

TEST_P(PolicyConformance, PreferencesComeFirstAndLast) {
  begin(1, 30);
  bring(1, 0, 30);
  policy->page_prefers({{1}, 4}, Preference::prefer_host);
  policy->page_prefers({{1}, 29}, Preference::prefer_hbm);
  policy->page_prefers({{1}, 0}, Preference::prefer_hbm);
  policy->page_prefers({{1}, 7}, Preference::prefer_host);
  policy->page_prefers({{1}, 7}, Preference::normal);
  const auto pages = victims();
  ASSERT_EQ(pages.size(), 30u);
  EXPECT_EQ(pages[0].index, 4u);
  EXPECT_EQ(std::set<std::uint32_t>({pages[28].index, pages[29].index}), std::set<std::uint32_t>({0, 29}));
}

TEST_P(PolicyConformance, PagesOfTheSizeAskedForGoFirstAmongLikePages) {
  begin(1, 8);
  begin(2, 8, 2 * kPage);
  bring(1, 0, 8);
  bring(2, 0, 8);
  for (const PageId page : victims(4, kPage)) EXPECT_EQ(page.region.value, 1u);
  for (const PageId page : victims(2, 2 * kPage)) EXPECT_EQ(page.region.value, 2u);
}

TEST_P(PolicyConformance, PrefetchNeverAsksForPagesInHbmAndKeepsToItsRoom) {
  begin(1, 200);
  for (std::uint32_t i = 0; i < 150; ++i) {
    bring(1, i, 1);
    const auto pages = prefetches(3 * kPage);
    EXPECT_LE(pages.size(), 3u);
    for (const PageId page : pages) {
      EXPECT_GT(page.index, i);
      EXPECT_LT(page.index, 200u);
    }
    if (i >= kFrames / 2) policy->page_left({{1}, i - kFrames / 2});
  }
}

TEST_P(PolicyConformance, EventsAboutUnknownOrDeadPagesAreIgnored) {
  begin(1, 4);
  policy->region_ends({9});
  policy->page_arrived({{9}, 0}, Cause::prefetch);
  policy->page_arrived({{1}, 4}, Cause::use);
  policy->page_left({{1}, 2});
  policy->page_left({{9}, 2});
  policy->page_prefers({{1}, 99}, Preference::prefer_host);
  use(9, 0);
  use(1, 4);
  use(1, 2, UINT32_MAX);
  use(1, 0, 0);
  policy->page_arrived({{1}, 1}, Cause::use);
  policy->page_arrived({{1}, 1}, Cause::use);
  EXPECT_EQ(victims().size(), 1u);
}

TEST_P(PolicyConformance, ARegionThatBeginsAgainIsNew) {
  begin(1, 10);
  bring(1, 0, 10);
  begin(1, 3);
  EXPECT_EQ(victims().size(), 0u);
  bring(1, 0, 3);
  EXPECT_EQ(victims().size(), 3u);
}

TEST_P(PolicyConformance, NothingIsRetainedWhenAllRegionsHaveEnded) {
  const std::int64_t before = live_bytes();
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t region = 1; region <= 100; ++region) begin(region, 100, kPage << region % 3, int(region % 2));
    for (std::uint32_t i = 0; i < 60; ++i)
      for (std::uint32_t region = 1; region <= 100; ++region) bring(region, i, 1);
    for (int device = 0; device < 2; ++device) victims(40, kPage, device), prefetches(UINT64_MAX, device);
    for (std::uint32_t region = 1; region <= 100; ++region) policy->region_ends({region});
    EXPECT_EQ(live_bytes(), before);
  }
}

TEST_P(PolicyConformance, MetadataIsWhatThePagesCost) {
  EXPECT_EQ(policy->metadata_bytes(), 0u);
  const std::int64_t before = live_bytes();
  begin(1, 100'000);
  const auto told = double(policy->metadata_bytes());
  EXPECT_NEAR(told, double(live_bytes() - before), told / 10);
  policy->region_ends({1});
  EXPECT_EQ(policy->metadata_bytes(), 0u);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PolicyConformance);

}  // namespace vmem::migration::testing
