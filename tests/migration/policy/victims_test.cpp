// Victims of the second-chance policy, case by case.
#include <gtest/gtest.h>

#include <set>

#include "migration/policy/cache_simulator.hpp"
#include "migration/policy/prefetch_simulator.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

struct Victims : ::testing::Test {
  std::unique_ptr<Policy> policy = make_second_chance_policy({.hbm_bytes = {64 * kPageBytes}});

  void begin(std::uint32_t region, std::uint32_t pages, std::uint64_t page_bytes = kPageBytes) {
    policy->region_begins({.id = {region}, .pages = pages, .page_bytes = page_bytes});
  }
  void use(std::uint32_t region, std::uint32_t first, std::uint32_t count = 1) {
    policy->used({.region = {region}, .first = first, .count = count});
  }
  void bring(std::uint32_t region, std::uint32_t page) {
    use(region, page);
    policy->page_arrived({{region}, page}, Cause::use);
  }
  // The next best victim at each call.
  PageId next(std::uint64_t page_bytes = kPageBytes) { return offer(page_bytes, true); }
  PageId best() { return offer(kPageBytes, false); }

 private:
  PageId offer(std::uint64_t page_bytes, bool again) {
    PageId page[1] = {};
    policy->victims({.page_bytes = page_bytes, .bytes_wanted = page_bytes, .again = again}, page);
    return page[0];
  }
};

TEST_F(Victims, OfPagesSeenOnceTheLatestGoesFirst) {
  begin(1, 10);
  for (std::uint32_t i = 0; i < 10; ++i) bring(1, i);
  EXPECT_EQ(next().index, 9u);
  EXPECT_EQ(next().index, 8u);
}

TEST_F(Victims, PagesFetchedAheadAreKeptUntilUsed) {
  begin(1, 10);
  for (std::uint32_t i = 0; i < 4; ++i) bring(1, i);
  for (std::uint32_t i = 4; i < 8; ++i) policy->page_arrived({{1}, i}, Cause::prefetch);
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_LT(next().index, 4u);
  EXPECT_EQ(next().index, 7u);  // last, the page needed last
}

TEST_F(Victims, PagesFetchedAheadInVainGoInTheEnd) {
  begin(1, 10);
  begin(2, 40);
  policy->page_arrived({{1}, 5}, Cause::prefetch);
  for (int round = 0; round < 4; ++round)
    for (std::uint32_t i = 0; i < 40; ++i) round == 0 ? bring(2, i) : use(2, i);
  EXPECT_EQ(next(), (PageId{{1}, 5}));
}

TEST_F(Victims, IdlePagesMakeRoomForPagesInUse) {
  begin(1, 40);
  begin(2, 20);
  for (int round = 0; round < 3; ++round)
    for (std::uint32_t i = 0; i < 40; ++i) round == 0 ? bring(1, i) : use(1, i);
  for (int round = 0; round < 12; ++round)
    for (std::uint32_t i = 0; i < 20; ++i) round == 0 ? bring(2, i) : use(2, i);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(next().region.value, 1u);
}

TEST_F(Victims, AnotherSizeGoesFirstWhereItIsClearlyWorthLess) {
  begin(1, 40);
  begin(2, 4, 2 * kPageBytes);
  for (std::uint32_t i = 0; i < 40; ++i) bring(1, i);
  for (int round = 0; round < 400; ++round)
    for (std::uint32_t i = 0; i < 4; ++i) round == 0 ? bring(2, i) : use(2, i);
  EXPECT_EQ(next(2 * kPageBytes).region.value, 1u);
}

TEST_F(Victims, APageSetAsideAndUsedIsJudgedAnew) {
  begin(1, 10);
  for (std::uint32_t i = 0; i < 10; ++i) bring(1, i);
  EXPECT_EQ(next().index, 9u);
  use(1, 9);
  EXPECT_EQ(next().index, 9u);
}

TEST_F(Victims, RefusedPagesComeBackInTheirOrder) {
  begin(1, 20);
  for (std::uint32_t i = 0; i < 20; ++i) bring(1, i);
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(best().index, 19u);
    for (std::uint32_t i = 18; i > 9; --i) EXPECT_EQ(next().index, i);
  }
}

// The GPU still uses the latest pages, which the policy prefers as victims. Refusing them must not
// cost the scan its hits.
TEST_F(Victims, BusyPagesDoNotCostACyclicScanItsShare) {
  const Trace trace = cyclic_scan(256, 20);
  const auto other = make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {64 * kPageBytes}});
  const Machine machine{.frames = 64, .busy_pages = 8};
  const Timing timing = simulate(*other, trace, machine);
  EXPECT_LE(timing.fetched, 256u + 19u * (256 - 64 + 8 + 2));
}

TEST_F(Victims, StampsSurviveTheWrapOfTheClock) {
  auto tiny = make_second_chance_policy({.hbm_bytes = {4096}});
  tiny->region_begins({.id = {1}, .pages = 2, .page_bytes = 1});
  tiny->region_begins({.id = {2}, .pages = 4, .page_bytes = std::uint64_t{1} << 27});
  tiny->page_arrived({{1}, 0}, Cause::use);
  tiny->used({.region = {1}, .first = 0, .count = 1});
  tiny->page_arrived({{2}, 0}, Cause::use);
  for (int i = 0; i < 100; ++i) {  // three times round
    tiny->used({.region = {2}, .first = 0, .count = 1});
    PageId page[1] = {};
    ASSERT_EQ(tiny->victims({.page_bytes = 2, .bytes_wanted = 1}, page), 1u);
    if (i > 20) {
      ASSERT_EQ(page[0].region.value, 1u) << i;
    }
  }
}

}  // namespace
}  // namespace vmem::migration::testing
