// Pages that found no frame are served in place, in host memory, and move to HBM later.
#include "migration/mover_pressure.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

TEST_F(Pressure, APageUsedInPlaceMovesToHbmWhenItsWorkIsDoneAndAFrameIsThere) {
  fill_hbm_with_work();
  const auto waiting = begin(*a, writing(*region, 2));
  steps();
  now_us += acquire_wait_us;
  ASSERT_TRUE(complete(*waiting));
  fill(*a, writing(*region, 2), 9);
  Gate reader = gate(*a);
  release(*a, writing(*region, 2));
  steps();
  EXPECT_TRUE(in_place(*region, 2));
  kernel->open();
  finish_work(*b);
  steps();
  EXPECT_TRUE(in_place(*region, 2)) << "its own work is unfinished";
  reader.open();
  finish_work(*a);
  steps();
  settle();
  check();
  EXPECT_TRUE(in_hbm(*region, 2));
  expect_bytes(*a, *region, 2, 9);
}

TEST_F(Pressure, APageHeldInPlaceIsNotMovedAndCostsNoOtherItsFrame) {
  fill_hbm_with_work();
  const auto waiting = begin(*a, writing(*region, 2));
  steps();
  now_us += acquire_wait_us;
  ASSERT_TRUE(complete(*waiting));
  ASSERT_TRUE(acquire(*a, reading(*region, 2)));  // a second hold
  release(*a, reading(*region, 2));
  kernel->open();
  finish_work(*a);
  finish_work(*b);
  steps();
  check();
  EXPECT_TRUE(in_place(*region, 2));
  EXPECT_EQ(inside->counters().evictions, 0u);
  release(*a, writing(*region, 2));
}

TEST_F(Pressure, ALaunchWaitsForTheEndOfWorkInPlaceAndBringsThePageToHbm) {
  start({.hbm_pages = 2});
  Region& all = allocate(3);
  Actor& first = actor();
  ASSERT_TRUE(acquire(first, writing(all, 0, 3)));
  fill(first, writing(all, 0, 3), 5);
  Gate reader = gate(first);
  release(first, writing(all, 0, 3));
  ASSERT_TRUE(in_place(all, 2));
  const auto waiting = begin(first, launching(all, 2));
  steps();
  EXPECT_FALSE(waiting->done());
  EXPECT_TRUE(in_place(all, 2)) << "its work is unfinished";
  reader.open();
  ASSERT_TRUE(complete(*waiting));
  check();
  EXPECT_TRUE(in_hbm(all, 2));
  release(first, launching(all, 2));
  expect_bytes(first, all, 2, 5);
}

TEST_F(Pressure, ALaunchThatNeedsMoreThanHbmGoesOnInPlace) {
  start({.hbm_pages = 4});
  Region& all = allocate(6);
  Actor& first = actor();
  ASSERT_TRUE(acquire(first, writing(all, 0, 6)));
  release(first, writing(all, 0, 6));
  finish_work(first);
  ASSERT_TRUE(acquire(first, launching(all, 2, 4)));
  EXPECT_TRUE(in_place(all, 4) && in_place(all, 5));
  EXPECT_EQ(inside->counters().evictions, 0u);
  release(first, launching(all, 2, 4));
}

TEST_F(Pressure, AnotherThreadsHoldKeepsAPageInPlaceForALaunch) {
  start({.hbm_pages = 2});
  Region& all = allocate(3);
  Actor &first = actor(), &second = actor();
  ASSERT_TRUE(acquire(first, writing(all, 0, 3)));
  ASSERT_TRUE(acquire(second, launching(all, 2)));
  EXPECT_TRUE(in_place(all, 2));
  release(second, launching(all, 2));
  release(first, writing(all, 0, 3));
}

TEST_F(Pressure, APageInPlaceDoesNotKeepOthersOutOfHbm) {
  start({.hbm_pages = 2});
  Region& all = allocate(4);
  Actor& first = actor();
  ASSERT_TRUE(advise(writing(all, 0), VMEM_ADVISE_IN_PLACE));
  Region& other = allocate(2);
  write_to_the_end(first, writing(other, 0, 2), 1);
  ASSERT_TRUE(acquire(first, launching(all, 0, 2)));
  EXPECT_TRUE(in_place(all, 0));
  EXPECT_TRUE(in_hbm(all, 1)) << "evicting one of the others";
  release(first, launching(all, 0, 2));
}

TEST_F(Pressure, KeptPagesStayMappedWhateverIsWanted) {
  start({.hbm_pages = 4});
  Region& kept = allocate(2);
  Region& other = allocate(6);
  Actor& user = actor();
  write_to_the_end(user, writing(kept, 0, 2), 7);
  evict_to_the_end(writing(kept, 0, 2));
  KeepRequest keep;
  keep.run = {&kept, 0, 2};
  ASSERT_TRUE(ask(keep));
  for (std::uint32_t i = 0; i < 6; ++i) write_to_the_end(user, writing(other, i), 1);
  evict(writing(kept, 0, 2));
  HideRequest hide;
  ASSERT_TRUE(ask(hide));
  EXPECT_TRUE(in_hbm(kept, 0) && in_hbm(kept, 1));
  check();
  expect_bytes(user, kept, 1, 7);
}

TEST_F(Pressure, MoreThanHbmCanSpareIsNotKept) {
  start({.hbm_pages = 4});
  Region& kept = allocate(4);
  KeepRequest keep;
  keep.run = {&kept, 0, 4};
  const Status outcome = ask(keep);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(outcome.error().message.find("raise --hbm"), std::string::npos) << outcome.error().message;
}

TEST_F(Pressure, AdvisedPagesAreServedInPlaceAndStayThere) {
  start();
  Region& all = allocate(2);
  Actor& first = actor();
  ASSERT_TRUE(advise(writing(all, 0), VMEM_ADVISE_IN_PLACE));
  write(first, writing(all, 0, 2), 4);
  EXPECT_TRUE(in_place(all, 0));
  EXPECT_TRUE(in_hbm(all, 1)) << "advice for one page serves no other in place";
  finish_work(first);
  steps();
  EXPECT_TRUE(in_place(all, 0));
  expect_stored(all, 0, 4);
}

TEST_F(Pressure, ServiceInPlaceWaitsForTheStoreThatFillsThePlace) {
  start();
  Region& all = allocate(1);
  Actor& first = actor();
  write(first, writing(all, 0), 4);
  finish_work(first);
  tier->hold_back(Direction::store);
  ASSERT_TRUE(advise(writing(all, 0), VMEM_ADVISE_IN_PLACE));
  ASSERT_TRUE(acquire(first, reading(all, 0)));
  check();
  EXPECT_TRUE(in_place(all, 0));
  EXPECT_TRUE(state(all, 0).has(PageState::kPending));
  enqueue(*driver, first.stream, [] {});
  EXPECT_EQ((*driver)->cuStreamQuery(first.stream), CUDA_ERROR_NOT_READY);
  tier->let_go(Direction::store);
  finish_work(first);
  release(first, reading(all, 0));
  settle();
  expect_bytes(first, all, 0, 4);
}

TEST_F(Pressure, AStoreThatFailsUnderAPageInPlaceLosesThePageForGood) {
  start();
  Region& all = allocate(1);
  Actor& first = actor();
  write(first, writing(all, 0), 4);
  finish_work(first);
  tier->hold_back(Direction::store);
  tier->answer_next(Direction::store, tiers::Outcome::failed);
  ASSERT_TRUE(advise(writing(all, 0), VMEM_ADVISE_IN_PLACE));
  ASSERT_TRUE(acquire(first, reading(all, 0)));
  release(first, reading(all, 0));
  ASSERT_TRUE(advise(writing(all, 0), VMEM_ADVISE_NORMAL));
  tier->let_go(Direction::store);
  finish_work(first);
  settle();
  prefetch(reading(all, 0));
  settle();
  const Status again = acquire(first, reading(all, 0));
  ASSERT_FALSE(again) << "a promotion must not make it look valid";
  EXPECT_EQ(again.error().status, VMEM_ERROR_LOST);
}

}  // namespace
}  // namespace vmem::migration
