// The look-ahead policy: which pages it evicts and fetches once a program repeats itself.
#include "migration/policy/look_ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint32_t kRegions = 40;

struct LookAhead : ::testing::Test {
  std::unique_ptr<Policy> policy =
      make_look_ahead_policy({{64 * kPage}}, make_second_chance_policy({.hbm_bytes = {64 * kPage}}));
  std::set<std::uint32_t> resident;

  void SetUp() override {
    for (std::uint32_t i = 1; i <= kRegions; ++i)
      policy->region_begins({.id = {i}, .pages = 1, .page_bytes = kPage, .undeclared = true});
  }
  void use(std::uint32_t region) { policy->used({.region = {region}, .first = 0, .count = 1}); }
  void use_range(std::uint32_t first, std::uint32_t last) {
    for (; first <= last; ++first) use(first);
  }
  void bring(std::uint32_t first, std::uint32_t last) {
    for (; first <= last; ++first) policy->page_arrived({{first}, 0}, Cause::use);
  }
  std::uint32_t victim(bool again = false) {
    std::array<PageId, 1> page{};
    return policy->victims({.page_bytes = kPage, .bytes_wanted = kPage, .again = again}, page) == 1
               ? page[0].region.value
               : 0;
  }
  std::vector<std::uint32_t> fetches() {
    std::array<PageId, 8> pages{};
    const std::size_t count = policy->prefetches({0, 64 * kPage}, pages);
    std::vector<std::uint32_t> regions;
    for (std::size_t i = 0; i < count; ++i) regions.push_back(pages[i].region.value);
    return regions;
  }
  // A pass over all regions, and half of another.
  void learn() {
    use_range(1, kRegions);
    use_range(1, 20);
  }
};

// One region whose pages blocks share: each page is followed alone, as single regions are above.
struct SharedPages : ::testing::Test {
  static constexpr std::uint32_t kPages = 40;
  const RegionId region{1};
  std::unique_ptr<Policy> policy = make_look_ahead_policy(
      {{64 * kPage}}, make_second_chance_policy({.prefetch_pages = 16, .hbm_bytes = {64 * kPage}}));

  void SetUp() override {
    policy->region_begins({.id = region, .pages = kPages, .page_bytes = kPage, .undeclared = true, .shared = true});
    // Blocks of two pages, in a pass and a half.
    for (std::uint32_t i = 0; i < 3 * kPages / 2; i += 2)
      policy->used({.region = region, .first = i % kPages, .count = 2});
  }
  void bring(std::uint32_t first, std::uint32_t last) {
    for (; first <= last; ++first) policy->page_arrived({region, first}, Cause::use);
  }
  std::vector<std::uint32_t> victims(std::size_t most) {
    std::vector<PageId> pages(most);
    pages.resize(policy->victims({.page_bytes = kPage, .bytes_wanted = kPage}, pages));
    std::vector<std::uint32_t> indices;
    for (const PageId page : pages) indices.push_back(page.index);
    return indices;
  }
};

TEST_F(SharedPages, LeaveOneByOne) {
  bring(10, 25);
  EXPECT_EQ(victims(3), (std::vector<std::uint32_t>{19, 18, 17})) << "just used: their next uses are a pass away";
  policy->page_left({region, 19});
  EXPECT_EQ(victims(2), (std::vector<std::uint32_t>{18, 17}));
}

TEST_F(SharedPages, DieOneByOne) {
  bring(10, 25);
  policy->pages_dead({region, 22}, 2, true);
  EXPECT_EQ(victims(3), (std::vector<std::uint32_t>{23, 22, 19}));
  policy->pages_dead({region, 22}, 1, false);
  EXPECT_EQ(victims(2), (std::vector<std::uint32_t>{23, 19}));
}

TEST_F(SharedPages, AreFetchedInTheOrderOfTheirNextUses) {
  std::array<PageId, 8> pages{};
  ASSERT_EQ(policy->prefetches({0, 64 * kPage, 8 * kPage}, pages), 8u);
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(pages[i].index, 20 + i);
}

// The other policy would read on in the region: pages whose room is needed before their turn.
TEST_F(SharedPages, NobodyFetchesWhatTheForecastLeavesOut) {
  std::array<PageId, 64> pages{};
  ASSERT_EQ(policy->prefetches({0, 64 * kPage, 0}, pages), 8u) << "an eighth of the budget, and no more";
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(pages[i].index, 20 + i);
  EXPECT_EQ(policy->prefetches({0, 64 * kPage, 0}, pages), 0u);
}

TEST_F(SharedPages, OfOtherRegionsTheOtherPolicyFetchesMore) {
  const RegionId declared{50};
  policy->region_begins({.id = declared, .pages = 32, .page_bytes = kPage});
  for (std::uint32_t i = 0; i < 8; ++i) policy->used({.region = declared, .first = i, .count = 1});
  std::array<PageId, 64> pages{};
  const std::size_t count = policy->prefetches({0, 64 * kPage, 0}, pages);
  EXPECT_EQ(std::ranges::count(pages.begin(), pages.begin() + std::ptrdiff_t(count), declared, &PageId::region),
            std::ptrdiff_t(count) - 8);
  EXPECT_GT(count, 8u);
}

TEST_F(SharedPages, ThatEndServeOtherRegions) {
  policy->region_ends(region);
  EXPECT_EQ(policy->metadata_bytes(), 0u);
  policy->region_begins({.id = region, .pages = 3, .page_bytes = kPage, .undeclared = true});
  bring(0, 2);
  EXPECT_EQ(victims(4).size(), 3u);
}

TEST_F(LookAhead, GivesUpWhatIsNeededLast) {
  learn();
  bring(11, 30);
  EXPECT_EQ(victim(), 20u) << "just used: its next use is a pass away";
  EXPECT_EQ(victim(true), 19u);
  for (int i = 0; i < 8; ++i) victim(true);
  EXPECT_EQ(victim(true), 30u) << "then what comes, the farthest first";
}

TEST_F(LookAhead, ANewQueryBeginsAgain) {
  learn();
  bring(11, 30);
  victim();
  victim(true);
  EXPECT_EQ(victim(), 20u);
}

TEST_F(LookAhead, OffersEveryPageOnceBeforeAnyOtherPolicy) {
  learn();
  bring(11, 30);
  std::set<std::uint32_t> offered{victim()};
  for (int i = 1; i < 20; ++i) EXPECT_TRUE(offered.insert(victim(true)).second);
  EXPECT_EQ(*offered.begin(), 11u);
  EXPECT_EQ(offered.size(), 20u);
}

TEST_F(LookAhead, WhatIsNearGoesAfterAllThatIsFarOff) {
  learn();
  bring(11, 30);
  std::array<PageId, 16> pages{};
  ASSERT_EQ(policy->victims({.page_bytes = kPage, .bytes_wanted = kPage}, pages), 16u);
  for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(pages[i].region.value, 20 - i);
  for (std::uint32_t i = 10; i < 16; ++i) EXPECT_EQ(pages[i].region.value, 40 - i);
}

TEST_F(LookAhead, OfWhatIsFarOffTheSizeThatIsAskedForComesFirst) {
  constexpr std::uint32_t kLarge = 100;
  policy->region_begins({.id = {kLarge}, .pages = 1, .page_bytes = 4 * kPage, .undeclared = true});
  const auto use_to_20 = [&] {
    use_range(1, 14);
    use(kLarge);
    use_range(15, 20);
  };
  use_to_20();
  use_range(21, kRegions);
  use_to_20();
  bring(11, 30);
  bring(kLarge, kLarge);
  std::array<PageId, 1> page{};
  ASSERT_EQ(policy->victims({.page_bytes = 4 * kPage, .bytes_wanted = 4 * kPage}, page), 1u);
  EXPECT_EQ(page[0].region.value, kLarge);
  EXPECT_EQ(victim(), 20u);
  std::uint32_t last = 0;
  for (int i = 0; i < 10; ++i) last = victim(true);
  EXPECT_EQ(last, kLarge) << "behind those of the other size, before what is near";
}

TEST_F(LookAhead, FetchesWhatComesNext) {
  learn();
  const auto wanted = fetches();
  ASSERT_FALSE(wanted.empty());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(wanted[i], 21 + i);
}

TEST_F(LookAhead, FetchesNothingTwice) {
  learn();
  std::set<std::uint32_t> asked;
  for (auto wanted = fetches(); !wanted.empty(); wanted = fetches()) {
    for (const std::uint32_t region : wanted) EXPECT_TRUE(asked.insert(region).second) << region;
  }
  use(21);
  for (const std::uint32_t region : fetches()) EXPECT_FALSE(asked.contains(region)) << region;
}

TEST_F(LookAhead, DoesNotFetchWhatTheProgramHasPassed) {
  learn();
  std::array<PageId, 4> pages{};
  ASSERT_EQ(policy->prefetches({0, 64 * kPage, 64 * kPage}, pages), 4u);
  EXPECT_EQ(pages[3].region.value, 24u);
  use_range(21, 27);
  ASSERT_EQ(policy->prefetches({0, 64 * kPage, 64 * kPage}, pages), 4u);
  EXPECT_EQ(pages[0].region.value, 28u);
}

TEST_F(LookAhead, OfARegionWithAnotherOnesIdNothingIsExpected) {
  learn();
  policy->region_ends({25});
  policy->region_begins({.id = {25}, .pages = 1, .page_bytes = kPage, .undeclared = true});
  std::array<PageId, 64> pages{};
  const std::size_t count = policy->prefetches({0, 64 * kPage, 64 * kPage}, pages);
  ASSERT_GT(count, 10u);
  for (std::size_t i = 0; i < count; ++i) EXPECT_NE(pages[i].region.value, 25u);
}

TEST_F(LookAhead, FetchesFartherAheadIntoRoomThatNobodyNeeds) {
  learn();
  std::array<PageId, 64> pages{};
  EXPECT_EQ(policy->prefetches({0, 64 * kPage, 0}, pages), 8u) << "an eighth of the budget";
  use(21), use(22), use(23), use(24), use(25), use(26), use(27), use(28);
  EXPECT_EQ(policy->prefetches({0, 64 * kPage, 64 * kPage}, pages), kRegions) << "all of the pass to come";
}

TEST_F(LookAhead, WhatWillHaveToGoIsNamedAgainUntilItHasGone) {
  // Each pass allocates regions 31 to 40.
  const auto allocate = [&] {
    for (std::uint32_t i = 31; i <= 40; ++i) policy->pages_dead({{i}, 0}, 1, false), use(i);
    for (std::uint32_t i = 31; i <= 40; ++i) policy->pages_dead({{i}, 0}, 1, true);
  };
  use_range(1, 30);
  allocate();
  use_range(1, 30);
  bring(1, 30);
  std::array<PageId, 4> pages{};
  ASSERT_EQ(policy->leaves({0, 64 * kPage, 7 * kPage}, pages), 3u) << "ten come, seven have room";
  for (std::uint32_t i = 0; i < 3; ++i) EXPECT_EQ(pages[i].region.value, 30 - i);
  policy->page_left({{29}, 0});
  ASSERT_EQ(policy->leaves({0, 64 * kPage, 8 * kPage}, pages), 2u);
  EXPECT_EQ(pages[0].region.value, 30u);
  EXPECT_EQ(pages[1].region.value, 28u);
}

TEST_F(LookAhead, FetchesNothingThatIsThere) {
  learn();
  bring(21, kRegions);
  EXPECT_TRUE(fetches().empty());
}

TEST_F(LookAhead, TheDeadGoFirst) {
  learn();
  bring(11, 30);
  policy->pages_dead({{25}, 0}, 1, true);
  EXPECT_EQ(victim(), 25u);
  EXPECT_EQ(victim(true), 20u);
  policy->pages_dead({{25}, 0}, 1, false);
  EXPECT_EQ(victim(), 20u);
}

TEST_F(LookAhead, TheDeadGoFirstBeforeAnythingWasLearned) {
  use_range(1, 10);
  bring(1, 10);
  policy->pages_dead({{4}, 0}, 1, true);
  EXPECT_EQ(victim(), 4u);
}

TEST_F(LookAhead, TheDeadAreNotFetched) {
  learn();
  policy->pages_dead({{22}, 0}, 1, true);
  for (const std::uint32_t region : fetches()) EXPECT_NE(region, 22u);
}

TEST_F(LookAhead, WhatWillDieSoonIsWorthWaitingFor) {
  use_range(1, 20);
  policy->pages_dead({{20}, 0}, 1, true);  // in the first pass it dies right after its use
  policy->pages_dead({{20}, 0}, 1, false);
  use_range(21, kRegions);
  use_range(1, 20);
  bring(11, 30);
  EXPECT_EQ(victim(), 19u);
}

TEST_F(LookAhead, OtherRegionsAreTheOtherPolicys) {
  policy->region_begins({.id = {50}, .pages = 4, .page_bytes = kPage});
  policy->used({.region = {50}, .first = 0, .count = 1});
  policy->page_arrived({{50}, 0}, Cause::use);
  EXPECT_EQ(victim(), 50u);
}

TEST_F(LookAhead, AnEndedRegionIsForgotten) {
  learn();
  bring(20, 20);
  policy->region_ends({20});
  EXPECT_EQ(victim(), 0u);
}

}  // namespace
}  // namespace vmem::migration::testing
