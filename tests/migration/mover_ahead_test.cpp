// Work that no thread waits for: requested and planned prefetch, pins, promotion by the real
// policy.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class Ahead : public MoverTest {
 protected:
  Region& host_region(std::uint32_t pages) {
    Region& region = allocate(pages);
    for (std::uint32_t i = 0; i < pages; ++i) EXPECT_TRUE(cpu_write(region, i, std::uint8_t(1 + i)));
    return region;
  }
};

TEST_F(Ahead, APrefetchedPageIsAHitAndItsFirstUseIsNoticed) {
  start();
  Region& region = host_region(1);
  Actor& a = actor();
  prefetch(reading(region, 0));
  settle();
  check();
  EXPECT_TRUE(in_hbm(region, 0));
  EXPECT_TRUE(state(region, 0).has(PageState::kNotify));
  EXPECT_EQ(inside->counters().prefetched_bytes, kPageBytes);
  const auto first = begin(a, reading(region, 0));
  EXPECT_TRUE(first->hit);
  ASSERT_TRUE(complete(*first));
  EXPECT_FALSE(state(region, 0).has(PageState::kNotify));
  check();
  release(a, reading(region, 0));
  steps();
  EXPECT_EQ(inside->counters().prefetched_used_bytes, kPageBytes);
  EXPECT_EQ(policy->uses.size(), 1u);
  expect_bytes(a, region, 0, 1);
}

TEST_F(Ahead, TwoThreadsNoticeAPrefetchedPagesFirstUseOnce) {
  start();
  Region& region = host_region(1);
  prefetch(reading(region, 0));
  settle();
  EXPECT_TRUE(take_notify(region, region.pages[0]));
  EXPECT_FALSE(take_notify(region, region.pages[0]));
  check();
}

TEST_F(Ahead, ANotificationTakenInTheMiddleOfAStateChangeKeepsTheCountersTrue) {
  start({.protect = true});
  Region& region = host_region(1);
  Actor &a = actor(), &b = actor();
  prefetch(reading(region, 0));
  settle();
  const auto upgrade = begin(a, writing(region, 0));
  faults->on_call([&](std::string_view call) {
    if (call == "cuMemSetAccess") (void)take_notify(region, region.pages[0]);
  });
  ASSERT_TRUE(complete(*upgrade));
  faults->on_call(nullptr);
  check();
  release(a, writing(region, 0));
  (void)b;
}

TEST_F(Ahead, WhatWillHaveToGoGoesBeforeItsFrameIsWanted) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 1);
  write_to_the_end(a, writing(region, 1), 2);
  policy->leaving = {region.page_id(0)};
  prefetch(reading(region, 1));  // any event that wakes the mover
  settle();
  check();
  EXPECT_EQ(page(region, 0).mapped, Mapped::nothing);
  EXPECT_TRUE(page(region, 0).standby());
  EXPECT_TRUE(in_hbm(region, 1));
  EXPECT_EQ(tier->submitted(Direction::store), 1u);
  expect_stored(region, 0, 1);
  // Until the frame is reused, the page returns without a copy.
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  EXPECT_EQ(tier->submitted(Direction::load), 0u);
  release(a, reading(region, 0));
  expect_bytes(a, region, 0, 1);
}

TEST_F(Ahead, WhatIsInUseGoesWhenItIsFree) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 1), 2);
  Gate kernel = gate(a);
  write(a, writing(region, 0), 1);
  policy->leaving = {region.page_id(0), region.page_id(1)};
  prefetch(reading(region, 1));
  ASSERT_TRUE(step_until([&] { return page(region, 1).mapped == Mapped::nothing; }))
      << "the busy one is in nobody's way";
  EXPECT_TRUE(in_hbm(region, 0));
  check();
  kernel.open();
  ASSERT_TRUE(step_until([&] { return page(region, 0).mapped == Mapped::nothing; })) << "without being asked again";
  settle();
  check();
  expect_stored(region, 0, 1);
}

TEST_F(Ahead, NoMoreGoesAheadThanTheLinkHasInHand) {
  constexpr std::uint32_t kPages = 80, kInHand = 64;
  start({.hbm_pages = kPages, .host_pages = kPages});
  Region& region = allocate(kPages);
  Actor& a = actor();
  for (std::uint32_t i = 0; i < kPages; ++i) write_to_the_end(a, writing(region, i), std::uint8_t(i + 1));
  tier->hold_back(Direction::store);
  for (std::uint32_t i = 0; i < kPages; ++i) policy->leaving.push_back(region.page_id(i));
  prefetch(reading(region, 0));
  const auto stores_reach = [&](std::uint64_t count) {
    return step_until([&] { return now_us += 10, tier->submitted(Direction::store) >= count; });
  };
  ASSERT_TRUE(stores_reach(kInHand));
  steps();
  EXPECT_EQ(tier->submitted(Direction::store), kInHand);
  for (std::uint32_t i = 0; i < kPages; ++i)
    EXPECT_EQ(in_hbm(region, i), i >= kInHand) << "in the policy's order: " << i;
  tier->let_go(Direction::store);
  ASSERT_TRUE(stores_reach(kPages));
  settle();
  check();
  for (std::uint32_t i = 0; i < kPages; i += 13) expect_stored(region, i, std::uint8_t(i + 1));
}

TEST_F(Ahead, APrefetchOfAPageThatWasNeverWrittenFetchesNothing) {
  start();
  Region& region = allocate(1);
  prefetch(reading(region, 0));
  steps();
  EXPECT_EQ(page(region, 0).mapped, Mapped::nothing);
}

TEST_F(Ahead, APrefetchedWritablePageCountsAsWritten) {
  start({.hbm_pages = 1});
  Region& region = allocate(2);
  Actor& a = actor();
  write(a, writing(region, 0), 1);
  finish_work(a);
  write(a, writing(region, 1), 2);
  finish_work(a);
  evict_to_the_end(reading(region, 1));
  prefetch(reading(region, 0));
  settle();
  ASSERT_TRUE(in_hbm(region, 0));
  EXPECT_TRUE(state(region, 0).allows(Access::write)) << "as it was used last";
  const auto first = begin(a, writing(region, 0));
  EXPECT_TRUE(first->hit);
  ASSERT_TRUE(complete(*first));
  fill(a, writing(region, 0), 9);
  release(a, writing(region, 0));
  finish_work(a);
  evict_to_the_end(reading(region, 0));
  expect_stored(region, 0, 9);
}

TEST_F(Ahead, APrefetchNeitherWaitsNorTakesAPageInUse) {
  start({.hbm_pages = 1});
  Region& region = host_region(2);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  prefetch(reading(region, 1));
  steps();
  EXPECT_FALSE(in_hbm(region, 1));
  EXPECT_TRUE(in_hbm(region, 0));
  release(a, reading(region, 0));
}

TEST_F(Ahead, APlannedPrefetchWaitsForTheFrameThatUnfinishedWorkHolds) {
  start({.hbm_pages = 1});
  Region& region = host_region(2);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  finish_work(a);
  Gate kernel = gate(a);
  release(a, reading(region, 0));
  ASSERT_TRUE(streams->close_epoch(*a.record));
  policy->ahead = {region.page_id(1)};
  QueryRequest look;  // any request
  look.run = {&region, 0, region.page_count};
  ASSERT_TRUE(ask(look));
  steps();
  EXPECT_FALSE(in_hbm(region, 1));
  kernel.open();
  EXPECT_TRUE(step_until([&] { return in_hbm(region, 1); }));
  settle();
  expect_bytes(a, region, 1, 2);
}

TEST_F(Ahead, APageInUseInPlaceDoesNotHoldUpThePlan) {
  start({.hbm_pages = 2});
  Region& region = host_region(3);
  Actor& a = actor();
  ASSERT_TRUE(advise(reading(region, 0), VMEM_ADVISE_IN_PLACE));
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  ASSERT_TRUE(in_place(region, 0));
  ASSERT_TRUE(advise(reading(region, 1), VMEM_ADVISE_NORMAL));
  region.pages[0].in_place = false;
  policy->ahead = {region.page_id(0), region.page_id(1)};
  steps();
  EXPECT_TRUE(step_until([&] { return in_hbm(region, 1); }));
  release(a, reading(region, 0));
}

TEST_F(Ahead, PinnedPagesComeAndStayAndNoMoreThanTheBudgetAllows) {
  start({.hbm_pages = 8});
  Region& region = host_region(10);
  Actor& a = actor();
  EXPECT_EQ(advise(reading(region, 0, 8), VMEM_ADVISE_PIN).error().status, VMEM_ERROR_OUT_OF_MEMORY);
  check();
  ASSERT_TRUE(advise(reading(region, 0, 7), VMEM_ADVISE_PIN));
  settle();
  steps();
  settle();
  check();
  for (std::uint32_t i = 0; i < 7; ++i) EXPECT_TRUE(in_hbm(region, i)) << i;
  for (std::uint32_t i = 7; i < 10; ++i) expect_bytes(a, region, i, std::uint8_t(1 + i));
  for (std::uint32_t i = 0; i < 7; ++i) EXPECT_TRUE(in_hbm(region, i)) << i;
  ASSERT_TRUE(advise(reading(region, 0, 7), VMEM_ADVISE_PIN)) << "what is pinned already counts once";
  ASSERT_TRUE(advise(reading(region, 0, 7), VMEM_ADVISE_NORMAL));
  check();
}

TEST_F(Ahead, TheRealPolicysScanIsFetchedAheadCorrectly) {
  start({.hbm_pages = 8, .host_pages = 40, .real_policy = true});
  Region& region = host_region(32);
  Actor& a = actor();
  for (int pass = 0; pass < 3; ++pass) {
    for (std::uint32_t i = 0; i < 32; ++i) {
      expect_bytes(a, region, i, std::uint8_t(1 + i));
      steps(3);
      check();
    }
  }
  EXPECT_GT(inside->counters().prefetched_used_bytes, 0u);
}

}  // namespace
}  // namespace vmem::migration
