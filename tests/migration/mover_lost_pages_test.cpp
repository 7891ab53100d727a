// A failing tier: a page is lost only if no other copy is left, and then every user gets the error.
#include <gmock/gmock.h>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class LostPages : public MoverTest {};

TEST_F(LostPages, APageWhoseLoadFailsIsLostAndItsNeighboursAreNot) {
  start();
  Region& region = allocate(3);
  Actor& a = actor();
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(cpu_write(region, i, std::uint8_t(1 + i)));
  tier->answer_next(Direction::load, tiers::Outcome::lost);
  ASSERT_TRUE(acquire(a, reading(region, 1)));  // the outcome comes later
  release(a, reading(region, 1));
  settle();
  check();
  const Status again = acquire(a, reading(region, 1));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().status, VMEM_ERROR_LOST);
  OpenPageRequest open;
  open.run = {&region, 1, 1};
  EXPECT_EQ(ask(open).error().status, VMEM_ERROR_LOST);
  expect_bytes(a, region, 0, 1);
  expect_bytes(a, region, 2, 3);
  const Status whole = acquire(a, reading(region, 0, 3));
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().status, VMEM_ERROR_LOST);
}

TEST_F(LostPages, ALoadThatFailsIsReportedOnceAndThePageIsKept) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(cpu_write(region, i, std::uint8_t(1 + i)));
  tier->answer_next(Direction::load, tiers::Outcome::failed);
  ASSERT_TRUE(acquire(a, reading(region, 0)));  // the outcome comes later
  release(a, reading(region, 0));
  finish_work(a);
  settle();
  check();
  const Status told = acquire(a, reading(region, 0));
  ASSERT_FALSE(told) << "work queued behind the load has read other bytes";
  EXPECT_EQ(told.error().status, VMEM_ERROR_DRIVER);
  EXPECT_THAT(told.error().message, ::testing::HasSubstr("repeat that work"));
  expect_bytes(a, region, 0, 1);
  expect_bytes(a, region, 1, 2);
  expect_stored(region, 0, 1);
}

TEST_F(LostPages, APageWhoseLoadFailedUnderAHoldIsTakenBackAfterIt) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  Actor& b = actor();
  ASSERT_TRUE(cpu_write(region, 0, 7));
  tier->answer_next(Direction::load, tiers::Outcome::failed);
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  settle();
  EXPECT_EQ(acquire(b, reading(region, 0)).error().status, VMEM_ERROR_DRIVER);
  EXPECT_EQ(acquire(b, reading(region, 0)).error().status, VMEM_ERROR_DRIVER) << "while another holds it";
  release(a, reading(region, 0));
  finish_work(a);
  EXPECT_EQ(acquire(b, reading(region, 0)).error().status, VMEM_ERROR_DRIVER);
  expect_bytes(b, region, 0, 7);
}

TEST_F(LostPages, ALoadThatFailsUnderAWriteLosesThePage) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 7));
  tier->answer_next(Direction::load, tiers::Outcome::failed);
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  release(a, writing(region, 0));
  settle();
  EXPECT_EQ(acquire(a, reading(region, 0)).error().status, VMEM_ERROR_LOST) << "no copy has what was written";
}

TEST_F(LostPages, APageWhoseStoreFailsIsKeptWhileItsFrameHasTheBytes) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  tier->answer_next(Direction::store, tiers::Outcome::failed);
  evict_to_the_end(reading(region, 0));
  check();
  expect_bytes(a, region, 0, 6);
  finish_work(a);
  steps();
  evict(reading(region, 0));  // this store succeeds
  settle();
  expect_stored(region, 0, 6);
}

TEST_F(LostPages, APageTakenBackBeforeItsStoreFailsStaysValidAndDirty) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  tier->hold_back(Direction::store);
  tier->answer_next(Direction::store, tiers::Outcome::failed);
  evict(reading(region, 0));
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  release(a, reading(region, 0));
  tier->let_go(Direction::store);
  settle();
  check();
  finish_work(a);
  steps();
  evict_to_the_end(reading(region, 0));
  expect_stored(region, 0, 6);
}

TEST_F(LostPages, APageWhoseStoreFailsAfterItsFrameWasReusedIsLost) {
  start({.hbm_pages = 1});
  Region& region = allocate(2);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  tier->hold_back(Direction::store);
  tier->answer_next(Direction::store, tiers::Outcome::lost);
  evict(reading(region, 0));
  ASSERT_TRUE(acquire(a, writing(region, 1)));
  release(a, writing(region, 1));
  tier->let_go(Direction::store);
  settle();
  const Status lost = acquire(a, reading(region, 0));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().status, VMEM_ERROR_LOST);
  expect_stored(region, 1, 6);  // page 1 was not written: the frame has page 0's bytes
}

TEST_F(LostPages, ALostPageStaysLostThroughEvictionAndPromotion) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 1));
  tier->answer_next(Direction::load, tiers::Outcome::lost);
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  release(a, reading(region, 0));
  finish_work(a);
  settle();
  evict_to_the_end(reading(region, 0));
  prefetch(reading(region, 0));
  settle();
  check();
  const Status again = acquire(a, reading(region, 0));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().status, VMEM_ERROR_LOST);
}

// Some pages are only in the tier below host memory.
class FailedLoads : public MoverTest {
 protected:
  Region& start_with_pages_below(Actor*& user) {
    start({.hbm_pages = 4, .host_pages = 8, .spill_pages = 16});
    user = &actor();
    Region& region = allocate(16);
    for (std::uint32_t i = 0; i < 16; ++i) write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
    settle();
    while (first < 15 && (!below(region, first) || in_host(region, first) || page(region, first).frame != kNoFrame))
      ++first;
    return region;
  }
  // Advances time while stepping, so that postponed retries become due.
  void complete_in_time(Acquire& waiting) {
    for (int i = 0; i < 1'000 && !waiting.done(); ++i) {
      steps(2);
      now_us += 1'000;
    }
    EXPECT_TRUE(waiting.done());
  }
  std::uint32_t first = 0;  // first page that is only below
};

TEST_F(FailedLoads, ALoadThatFailsIsRepeatedAndThePageIsKept) {
  Actor* user = nullptr;
  Region& region = start_with_pages_below(user);
  spill->answer_next(Direction::load, tiers::Outcome::failed, VMEM_ERROR_OUT_OF_MEMORY);
  spill->answer_next(Direction::load, tiers::Outcome::failed, VMEM_ERROR_DRIVER);
  const auto waiting = begin(*user, reading(region, first));
  complete_in_time(*waiting);
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
  expect_bytes(*user, region, first, static_cast<unsigned char>(first));
}

TEST_F(FailedLoads, ACallWhosePageCannotBeLoadedFailsWithTheReasonAndTheNextOneTriesAgain) {
  Actor* user = nullptr;
  Region& region = start_with_pages_below(user);
  constexpr int kFailures = 100;
  for (int i = 0; i < kFailures; ++i)
    spill->answer_next(Direction::load, tiers::Outcome::failed, VMEM_ERROR_OUT_OF_MEMORY);
  const auto waiting = begin(*user, reading(region, first));
  complete_in_time(*waiting);
  const Status failed = complete(*waiting);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(failed.error().message.find("as scripted"), std::string::npos) << failed.error().message;
  EXPECT_NE(failed.error().message.find("scripted keeps it"), std::string::npos) << failed.error().message;
  EXPECT_FALSE(state(region, first).has(PageState::kLost));
  spill->forget_answers();
  const auto again = begin(*user, reading(region, first));
  complete_in_time(*again);
  ASSERT_TRUE(complete(*again));
  release(*user, again->range);
  expect_bytes(*user, region, first, static_cast<unsigned char>(first));
}

// A tier below host memory that does not answer.
class SilentTier : public FailedLoads {
 protected:
  Region& start_silent(Actor*& user) {
    Region& region = start_with_pages_below(user);
    spill->hold_back(Direction::load);
    return region;
  }
  // Lets `us` pass, over many steps.
  void pass(std::uint64_t us) {
    for (int i = 0; i < 10; ++i) {
      steps(5);
      now_us += us / 10;
    }
    steps(5);
  }
  // The request fails with TIMEOUT after call_wait_us, and not earlier.
  void expect_timeout(Request& request) {
    mover->post(request);
    pass(call_wait_us - 1000);
    EXPECT_FALSE(request.done());
    pass(2000);
    ASSERT_TRUE(request.done());
    EXPECT_EQ(request.result().error().status, VMEM_ERROR_TIMEOUT);
  }
};

TEST_F(SilentTier, AnAcquireEndsInItsTimeAndThePageIsKept) {
  Actor* user = nullptr;
  Region& region = start_silent(user);
  for (int call = 0; call < 3; ++call) {
    const auto waiting = begin(*user, reading(region, first));
    pass(call_wait_us - 1000);
    EXPECT_FALSE(waiting->done()) << "not before it is due";
    pass(2000);
    ASSERT_TRUE(waiting->done());
    const Status ended = complete(*waiting);
    ASSERT_FALSE(ended);
    EXPECT_EQ(ended.error().status, VMEM_ERROR_TIMEOUT);
    EXPECT_THAT(ended.error().message, ::testing::HasSubstr("scripted keeps it"));
    check();
  }
  spill->let_go();
  expect_bytes(*user, region, first, static_cast<unsigned char>(first));
}

// Several pages come from below one after another and are used in place.
TEST_F(SilentTier, EachPageUsedInPlaceHasTheWholeTime) {
  Actor* user = nullptr;
  Region& region = start_with_pages_below(user);
  ASSERT_LE(first + 3, region.page_count);
  ASSERT_TRUE(advise({&region, first, 3}, VMEM_ADVISE_IN_PLACE));
  constexpr std::uint64_t kPolls = 1000;  // in the time of a call
  spill->polls_each = kPolls * 45 / 100;
  const auto waiting = begin(*user, reading(region, first, 3));
  const std::uint64_t began_us = now_us;
  for (std::uint64_t i = 0; i < 10 * kPolls && !waiting->done(); ++i) {
    steps(1);
    now_us += call_wait_us / kPolls;
  }
  const Status served = complete(*waiting);
  ASSERT_TRUE(served) << served.error().message;
  EXPECT_GT(now_us - began_us, call_wait_us) << "together they take longer, or this shows nothing";
  for (std::uint32_t page = first; page < first + 3; ++page) EXPECT_TRUE(in_place(region, page));
  release(*user, waiting->range);
  spill->polls_each = 1;
  settle();
}

TEST_F(SilentTier, AReadByTheProcessorEndsInItsTimeAndThePageIsKept) {
  Actor* user = nullptr;
  Region& region = start_silent(user);
  OpenPageRequest open;
  open.run = {&region, first, 1};
  expect_timeout(open);
  spill->let_go();
  expect_stored(region, first, static_cast<unsigned char>(first));
}

TEST_F(SilentTier, KeepingAPageWhereItIsEndsInItsTime) {
  Actor* user = nullptr;
  Region& region = start_silent(user);
  KeepRequest keep;
  keep.run = {&region, first, 1};
  expect_timeout(keep);
  spill->let_go();
  expect_bytes(*user, region, first, static_cast<unsigned char>(first));
}

TEST_F(SilentTier, MakingARegionAccessibleWhileTheGpuIsIdleEndsInItsTime) {
  Actor* user = nullptr;
  Region& region = start_silent(user);
  SettleRequest settle_all;
  settle_all.region = &region;
  settle_all.idle = true;
  expect_timeout(settle_all);
  EXPECT_FALSE(settle_all.settled);
  spill->let_go();
  expect_bytes(*user, region, first, static_cast<unsigned char>(first));
}

TEST_F(SilentTier, OtherPagesAreServedMeanwhile) {
  Actor* user = nullptr;
  Region& region = start_silent(user);
  const auto waiting = begin(*user, reading(region, first));
  std::uint32_t served = 0;
  for (std::uint32_t page = 0; page < 16; ++page) {
    if (!in_host(region, page) && this->page(region, page).frame == kNoFrame) continue;
    expect_bytes(*user, region, page, static_cast<unsigned char>(page));
    ++served;
  }
  EXPECT_GT(served, 8u);
  spill->let_go();
  complete_in_time(*waiting);
  EXPECT_TRUE(complete(*waiting));
  release(*user, waiting->range);
}

TEST_F(SilentTier, TheEndWaitsNoLongerThanACall) {
  Actor* user = nullptr;
  Region& region = start_silent(user);
  const auto waiting = begin(*user, reading(region, first));
  pass(call_wait_us + 1000);
  ASSERT_TRUE(waiting->done());
  (void)complete(*waiting);
  finish_work(*user);
  QuiesceRequest quiesce;
  mover->post(quiesce);
  steps(20);
  ASSERT_TRUE(quiesce.done());
  EXPECT_EQ(quiesce.result().error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(quiesce.result().error().message, ::testing::HasSubstr("scripted"));
  ASSERT_TRUE(free(region, user));
  EndAllRequest end;
  mover->post(end);
  steps(50);
  ASSERT_TRUE(end.done());
  EXPECT_TRUE(end.result());
  spill->let_go();  // completes the load in flight before the test ends
  settle();
}

TEST_F(SilentTier, WorkThatTakesLongIsNoSilence) {
  Actor* user = nullptr;
  Region& region = start_with_pages_below(user);
  Gate gate = this->gate(*user);
  fill(*user, writing(region, 15), 1);
  QuiesceRequest quiesce;
  mover->post(quiesce);
  pass(10 * call_wait_us);
  gate.open();
  finish_work(*user);
  settle();
  steps(20);
  ASSERT_TRUE(quiesce.done());
  EXPECT_TRUE(quiesce.result());
}

}  // namespace
}  // namespace vmem::migration
