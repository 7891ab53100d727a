// More pages wanted than fit: waits for GPU progress, reassigned slots, and frames of several
// sizes.
#include "migration/mover_pressure.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

TEST_F(Pressure, AnAcquireWaitsForUnfinishedWorkAndTakesTheFrameItFrees) {
  fill_hbm_with_work();
  const auto waiting = begin(*a, writing(*region, 2));
  steps();
  EXPECT_FALSE(waiting->done());
  now_us += 7;
  kernel->open();
  ASSERT_TRUE(complete(*waiting));
  check();
  EXPECT_TRUE(in_hbm(*region, 2));
  EXPECT_EQ(inside->counters().acquire_waits, 1u);
  EXPECT_EQ(inside->counters().acquire_wait_us, 7u);
  EXPECT_EQ(inside->counters().in_place_acquires, 0u);
  release(*a, writing(*region, 2));
  finish_work(*b);
  expect_bytes(*a, *region, 0, 1);
  expect_bytes(*a, *region, 1, 1);
}

TEST_F(Pressure, WithoutProgressForAcquireWaitAnAcquireIsServedInPlace) {
  fill_hbm_with_work();
  const auto waiting = begin(*a, writing(*region, 2));
  steps();
  now_us += acquire_wait_us - 1;
  steps();
  EXPECT_FALSE(waiting->done());
  now_us += 1;
  steps(2);
  ASSERT_TRUE(waiting->done());
  ASSERT_TRUE(complete(*waiting));
  check();
  EXPECT_TRUE(in_place(*region, 2));
  EXPECT_EQ(inside->counters().in_place_acquires, 1u);
  fill(*a, writing(*region, 2), 9);
  release(*a, writing(*region, 2));
  finish_work(*a);
  expect_stored(*region, 2, 9);
}

TEST_F(Pressure, ProgressExtendsTheWaitButNotBeyondTenTimes) {
  fill_hbm_with_work();
  Actor& c = actor();
  const auto waiting = begin(*a, writing(*region, 2));
  steps();
  const std::uint64_t begun_us = now_us;
  while (now_us + 900 < begun_us + 10 * acquire_wait_us) {
    now_us += 900;
    progress(c);
    ASSERT_FALSE(waiting->done()) << now_us - begun_us;
  }
  now_us = begun_us + 10 * acquire_wait_us;
  progress(c);
  EXPECT_TRUE(waiting->done());
  ASSERT_TRUE(complete(*waiting));
  EXPECT_TRUE(in_place(*region, 2));
  release(*a, writing(*region, 2));
}

TEST_F(Pressure, WithAllFramesHeldAnAcquireIsServedInPlaceAtOnce) {
  start({.hbm_pages = 2});
  Region& all = allocate(4);
  Actor& first = actor();
  ASSERT_TRUE(acquire(first, writing(all, 0, 4)));  // two in HBM, two in place, without a wait
  check();
  EXPECT_TRUE(in_hbm(all, 0) && in_hbm(all, 1) && in_place(all, 2) && in_place(all, 3));
  EXPECT_EQ(inside->counters().in_place_acquires, 1u);
  EXPECT_EQ(inside->counters().acquire_waits, 0u);
  fill(first, writing(all, 0, 4), 3);
  release(first, writing(all, 0, 4));
  finish_work(first);
  for (std::uint32_t i = 0; i < 4; ++i) expect_stored(all, i, 3);
}

TEST_F(Pressure, TwoAcquiresThatEachHoldHalfAreBothServed) {
  start({.hbm_pages = 2});
  Region& one = allocate(2);
  Region& two = allocate(2);
  Actor &first = actor(), &second = actor();
  const auto left = begin(first, writing(one, 0, 2));
  const auto right = begin(second, writing(two, 0, 2));
  ASSERT_TRUE(complete(*left));
  ASSERT_TRUE(complete(*right));
  release(first, writing(one, 0, 2));
  release(second, writing(two, 0, 2));
}

// No acquire fails because of its size.
TEST_F(Pressure, SmallAllocationsAreServedInPlaceTooAndComeToHbmLater) {
  start({.hbm_pages = 2});
  Region& big = allocate(2);
  Region& small = allocate(1, 0, true);
  Actor &first = actor(), &second = actor();
  ASSERT_TRUE(acquire(first, writing(big, 0, 2)));
  const auto waiting = begin(second, writing(small, 0));
  ASSERT_TRUE(complete(*waiting));
  EXPECT_TRUE(in_place(small, 0));
  fill(second, writing(small, 0), 5);
  release(second, writing(small, 0));
  finish_work(second);
  check();
  release(first, writing(big, 0, 2));
  finish_work(first);
  ASSERT_TRUE(acquire(second, reading(small, 0)));
  release(second, reading(small, 0));
  finish_work(second);
  EXPECT_TRUE(step_until([&] { return in_hbm(small, 0); }));
  expect_bytes(second, small, 0, 5);
}

// Loads may wait for kernels, which may wait for what this thread does next.
TEST_F(Pressure, AnAcquireWhoseLoadsMakeNoProgressIsServedInPlaceAtLast) {
  constexpr std::uint32_t kPages = 40;  // more than the limit on loads in flight
  start({.hbm_pages = kPages + 4, .host_pages = kPages + 4});
  Region& many = allocate(kPages);
  Actor& first = actor();
  for (std::uint32_t i = 0; i < kPages; ++i) ASSERT_TRUE(cpu_write(many, i, std::uint8_t(i)));
  tier->hold_back(Direction::load);
  const auto waiting = begin(first, reading(many, 0, kPages));
  steps();
  EXPECT_FALSE(waiting->done());
  now_us += acquire_wait_us;
  ASSERT_TRUE(complete(*waiting));
  EXPECT_TRUE(in_hbm(many, 0));
  EXPECT_TRUE(in_place(many, kPages - 1));
  check();
  release(first, reading(many, 0, kPages));
  tier->let_go(Direction::load);
  for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(first, many, i, std::uint8_t(i));
}

TEST_F(Pressure, SlotsOfLargePagesMakeRoomForSmallOnes) {
  start({.hbm_pages = 16, .host_pages = 4, .page_bytes = 2 * kPageBytes});
  Region& large = allocate(4);
  Region& small = allocate(1, 0, true);
  Actor& first = actor();
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(cpu_write(large, i, 5));
  ASSERT_EQ(tier->usage().used_bytes, tier->usage().budget_bytes);
  for (std::uint32_t i = 0; i < 2; ++i) expect_bytes(first, large, i, 5);
  ASSERT_TRUE(cpu_write(small, 0, 6));
  expect_bytes(first, small, 0, 6);
  for (std::uint32_t i = 0; i < 2; ++i) expect_stored(large, i, 5);
  check();
}

TEST_F(Pressure, APinnedPageThatFoundNoFrameGetsOneLater) {
  start({.hbm_pages = 4});
  Region& big = allocate(4);
  Region& wanted = allocate(1);
  Actor& first = actor();
  ASSERT_TRUE(cpu_write(wanted, 0, 5));
  ASSERT_TRUE(acquire(first, writing(big, 0, 4)));
  ASSERT_TRUE(advise(reading(wanted, 0), VMEM_ADVISE_PIN));
  steps();
  EXPECT_FALSE(in_hbm(wanted, 0));
  release(first, writing(big, 0, 4));
  finish_work(first);
  EXPECT_TRUE(step_until([&] { return in_hbm(wanted, 0); }));
  expect_bytes(first, wanted, 0, 5);
}

TEST_F(Pressure, WithoutMappableHostMemoryAnAcquireBeyondHbmSaysSo) {
  start({.hbm_pages = 2, .in_place = false});
  Region& all = allocate(3);
  Actor& first = actor();
  const Status failed = acquire(first, writing(all, 0, 3));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  check();
  ASSERT_TRUE(acquire(first, writing(all, 0, 2)));
  release(first, writing(all, 0, 2));
}

// ---- slots ----

class FullHost : public Pressure {
 protected:
  // Pages 0-3 occupy all four host slots. HBM holds 2 and 3 (clean), and 4 and 5 (dirty).
  void SetUp() override {
    start({.hbm_pages = 4, .host_pages = 4});
    region = &allocate(6);
    a = &actor();
    for (std::uint32_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(cpu_write(*region, i, std::uint8_t(i)));
      expect_bytes(*a, *region, i, std::uint8_t(i));
    }
    for (std::uint32_t i = 4; i < 6; ++i) {
      write(*a, writing(*region, i), std::uint8_t(i));
      finish_work(*a);
    }
    ASSERT_TRUE(in_hbm(*region, 2) && in_hbm(*region, 3) && in_hbm(*region, 4) && in_hbm(*region, 5));
    policy->offer = {region->page_id(4)};
  }
  void expect_all() {
    policy->offer.clear();
    for (std::uint32_t i = 0; i < 6; ++i) expect_bytes(*a, *region, i, std::uint8_t(i));
    check();
  }
};

TEST_F(FullHost, AWrittenPageTakesTheSlotOfOneThatIsInHbm) {
  expect_bytes(*a, *region, 0, 0);
  check();
  EXPECT_TRUE(in_hbm(*region, 0));
  EXPECT_FALSE(in_hbm(*region, 4));
  EXPECT_NE(page(*region, 4).slot, kNoFrame);
  EXPECT_TRUE(page(*region, 2).slot == kNoFrame || page(*region, 3).slot == kNoFrame);
  expect_all();
}

TEST_F(FullHost, ReadMostlyPagesKeepTheirSlots) {
  ASSERT_TRUE(advise(reading(*region, 2, 2), VMEM_ADVISE_READ_MOSTLY));
  expect_bytes(*a, *region, 0, 0);
  check();
  EXPECT_TRUE(in_place(*region, 0)) << "page 4 cannot leave";
  EXPECT_TRUE(in_hbm(*region, 4));
  EXPECT_NE(page(*region, 2).slot, kNoFrame);
  EXPECT_NE(page(*region, 3).slot, kNoFrame);
  expect_all();
}

TEST_F(Pressure, AnUnbackedPageServedInPlaceTakesTheSlotOfOneInHbm) {
  start({.hbm_pages = 4, .host_pages = 4});
  Region& all = allocate(5);
  Actor& first = actor();
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(cpu_write(all, i, std::uint8_t(i)));
  ASSERT_TRUE(acquire(first, reading(all, 0, 4)));  // every frame is held, every slot occupied
  write(first, writing(all, 4), 4);
  check();
  EXPECT_TRUE(in_place(all, 4));
  release(first, reading(all, 0, 4));
  finish_work(first);
  for (std::uint32_t i = 0; i < 5; ++i) expect_bytes(first, all, i, std::uint8_t(i));
}

TEST_F(FullHost, EveryPageStaysReachableRoundAndRound) {
  policy->offer.clear();
  for (int pass = 0; pass < 4; ++pass) {
    for (std::uint32_t i = 0; i < 6; ++i) {
      write(*a, writing(*region, i), std::uint8_t(10 * pass + int(i)));
      finish_work(*a);
      check();
    }
    for (std::uint32_t i = 0; i < 6; ++i) expect_bytes(*a, *region, i, std::uint8_t(10 * pass + int(i)));
  }
}

// ---- several page sizes ----

TEST_F(Pressure, OnePageOfAnotherSizeIsEvictedForAFrameNotAllOfThem) {
  start({.hbm_pages = 64, .host_pages = 128, .page_bytes = std::nullopt});
  Region& large = allocate(60);  // 15 pages of 8 MiB
  Region& small = allocate(8);   // of 2 MiB
  ASSERT_EQ(large.page_count, 15u);
  ASSERT_EQ(small.page_count, 8u);
  Actor& first = actor();
  write(first, writing(large, 0, 15), 1);
  write(first, writing(small, 0, 4), 2);
  finish_work(first);
  tier->hold_back(Direction::store);
  const auto waiting = begin(first, writing(small, 4));
  step_until([&] { return inside->counters().evictions > 0; });
  steps(100);
  EXPECT_EQ(inside->counters().evictions, 1u) << "the frame of one large page holds four small ones";
  EXPECT_FALSE(waiting->done());
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  EXPECT_TRUE(in_hbm(small, 4));
  release(first, writing(small, 4));
  settle();
  check();
  for (std::uint32_t i = 0; i < 15; ++i) expect_bytes(first, large, i, 1);
}

TEST_F(Pressure, AskingForASlotAgainAndAgainMakesNoMoreThanAreTaken) {
  start({.hbm_pages = 64, .host_pages = 128, .page_bytes = std::nullopt});
  std::vector<tiers::SlotId> slots;
  const auto take = [&](std::uint64_t bytes) {
    const auto grant = *tier->allocate(bytes);
    if (grant.grant == tiers::Grant::granted) slots.push_back(grant.slot);
    return grant.grant == tiers::Grant::granted;
  };
  for (int i = 0; i < 50; ++i) (void)take(kPageBytes);
  const std::size_t taken = slots.size();
  while (!take(2 * kPageBytes)) std::this_thread::yield();  // smaller sizes are made first
  EXPECT_LE(tier->usage().ready_bytes + taken * kPageBytes, (taken + 1) * kPageBytes);
  for (const auto slot : slots) tier->release(slot);
}

}  // namespace
}  // namespace vmem::migration
