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

}  // namespace
}  // namespace vmem::migration
