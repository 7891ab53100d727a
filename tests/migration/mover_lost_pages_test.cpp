// A tier that fails: a page is lost only where no other copy of its bytes is left, and then everybody is told.
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
  evict(reading(region, 0));  // and is stored for real now
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
  expect_stored(region, 1, 6);  // never written: what the frame held
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

// Pages of which some are only in the tier below host memory.
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
  // Time passes with every few steps, so that a retry that was postponed is due.
  void complete_in_time(Acquire& waiting) {
    for (int i = 0; i < 1'000 && !waiting.done(); ++i) {
      steps(2);
      now_us += 1'000;
    }
    EXPECT_TRUE(waiting.done());
  }
  std::uint32_t first = 0;  // only below
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

}  // namespace
}  // namespace vmem::migration
