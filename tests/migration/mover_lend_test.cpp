// Pages in another GPU's memory: placement, use, and reclaim by the lender.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;
using tiers::Outcome;

class Lend : public MoverTest {
 protected:
  // Fills `pages` pages with distinct values and evicts them all. Other pages reuse their frames.
  Region& evicted(Actor& who, std::uint32_t pages) {
    Region& region = allocate(pages);
    for (std::uint32_t i = 0; i < pages; ++i) write_to_the_end(who, writing(region, i), value(i));
    evict_to_the_end(writing(region, 0, pages));
    Region& others = allocate(shape.hbm_pages);
    for (std::uint32_t i = 0; i < shape.hbm_pages; ++i) write_to_the_end(who, discarding(others, i), 0xee);
    EXPECT_TRUE(free(others));
    settle();
    return region;
  }
  static unsigned char value(std::uint32_t page) { return static_cast<unsigned char>(page + 1); }
  void expect_all_stored(Region& region) {
    for (std::uint32_t i = 0; i < region.page_count; ++i) expect_stored(region, i, value(i));
  }
  std::uint32_t pages_in_peer(const Region& region) const {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < region.page_count; ++i) count += in_peer(region, i) ? 1 : 0;
    return count;
  }
};

TEST_F(Lend, PagesGoToAPeerFirstAndThenToHostMemory) {
  start({.hbm_pages = 8, .lent_pages = 3});
  Actor& who = actor();
  Region& region = evicted(who, 5);
  EXPECT_EQ(pages_in_peer(region), 3u);
  EXPECT_TRUE(in_host(region, 3));
  EXPECT_TRUE(in_host(region, 4));
  EXPECT_EQ(inside->counters().peer_out_bytes, 3 * kPageBytes);
  expect_all_stored(region);
  for (std::uint32_t i = 0; i < 5; ++i) expect_bytes(who, region, i, value(i));
  EXPECT_EQ(inside->counters().peer_in_bytes, 3 * kPageBytes);
}

// Pages of 64 MiB, so that the remap costs less than half of their copy over NVLink.
TEST_F(Lend, LargeRegionsHaveLargerPagesWhereAPeerTakesThem) {
  start({.hbm_pages = 512, .host_pages = 256, .lent_pages = 8, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(256).page_bytes(), 32 * kPageBytes);
  EXPECT_EQ(allocate(128).page_bytes(), 16 * kPageBytes);
}
TEST_F(Lend, WhereTheyDoNotFitSmallerOnesAreTaken) {
  start({.hbm_pages = 512, .host_pages = 256, .lent_pages = 64, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(688).page_bytes(), 16 * kPageBytes);
}
TEST_F(Lend, WithoutAPeerTheyAreHalfAsLarge) {
  start({.hbm_pages = 512, .host_pages = 256, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(256).page_bytes(), 16 * kPageBytes);
}

TEST_F(Lend, APageThatWasOnlyReadGoesBackToThePeerWithoutACopy) {
  start({.hbm_pages = 8, .lent_pages = 4});
  Actor& who = actor();
  Region& region = evicted(who, 2);
  expect_bytes(who, region, 0, value(0));
  finish_work(who);
  const std::uint64_t out = inside->counters().peer_out_bytes;
  evict_to_the_end(reading(region, 0));
  EXPECT_TRUE(in_peer(region, 0));
  EXPECT_EQ(inside->counters().peer_out_bytes, out);
}

TEST_F(Lend, SlotsOfPagesInHbmAreTakenBeforeHostMemory) {
  start({.hbm_pages = 4, .lent_pages = 2});
  Actor& who = actor();
  Region& first = evicted(who, 2);
  for (std::uint32_t i = 0; i < 2; ++i) expect_bytes(who, first, i, value(i));
  finish_work(who);
  ASSERT_EQ(pages_in_peer(first), 2u);
  Region& second = allocate(2);
  for (std::uint32_t i = 0; i < 2; ++i) write_to_the_end(who, writing(second, i), value(i));
  evict_to_the_end(writing(second, 0, 2));
  EXPECT_EQ(pages_in_peer(second), 2u);
  expect_all_stored(first);
  expect_all_stored(second);
}

// The lender is full, but slots being loaded from become free when the loads end.
TEST_F(Lend, WhoNeedsASlotWaitsForThoseThatLoadsStillRead) {
  start({.hbm_pages = 4, .host_pages = 2, .lent_pages = 3});
  Actor& who = actor();
  Region& in_peers = evicted(who, 3);
  Region& in_hosts = allocate(2);
  for (std::uint32_t i = 0; i < 2; ++i) write_to_the_end(who, writing(in_hosts, i), value(i));
  evict_to_the_end(writing(in_hosts, 0, 2));
  ASSERT_EQ(pages_in_peer(in_peers), 3u);
  ASSERT_TRUE(in_host(in_hosts, 0) && in_host(in_hosts, 1));
  lent->hold_back(Direction::load);
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(acquire(who, writing(in_peers, i)));
  for (std::uint32_t i = 0; i < 3; ++i) release(who, writing(in_peers, i));
  Actor& other = actor();
  Region& last = allocate(2);
  write_to_the_end(other, discarding(last, 0), 0x31);
  const auto wanted = begin(other, discarding(last, 1));
  for (int i = 0; i < 3; ++i) {  // longer than an acquire waits for a frame
    steps();
    now_us += 11 * acquire_wait_us;
  }
  EXPECT_FALSE(wanted->done());
  lent->let_go(Direction::load);
  const Status served = complete(*wanted);
  ASSERT_TRUE(served) << served.error().message;
  release(other, wanted->range);
  for (std::uint32_t i = 0; i < 3; ++i) expect_bytes(who, in_peers, i, value(i));
  for (std::uint32_t i = 0; i < 2; ++i) expect_bytes(who, in_hosts, i, value(i));
}

TEST_F(Lend, WithoutAFrameAPageIsUsedInThePeersMemory) {
  start({.hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor();
  Region& region = evicted(who, 2);
  Region& others = allocate(4);
  ASSERT_TRUE(acquire(who, writing(others, 0, 4)));
  write(who, writing(region, 1), 0x77);
  EXPECT_TRUE(in_place(region, 1));
  EXPECT_TRUE(in_peer(region, 1));
  finish_work(who);
  expect_stored(region, 1, 0x77);
  release(who, writing(others, 0, 4));
  expect_bytes(who, region, 0, value(0));
}

TEST_F(Lend, TheCpuReadsAndWritesAPageThere) {
  start({.hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor();
  Region& region = evicted(who, 2);
  ASSERT_TRUE(cpu_write(region, 0, 0x55));
  EXPECT_TRUE(in_peer(region, 0));
  expect_stored(region, 0, 0x55);
  expect_bytes(who, region, 0, 0x55);
  expect_bytes(who, region, 1, value(1));
}

TEST_F(Lend, ALenderThatAllocatesGetsItsMemoryBack) {
  start({.devices = 2, .hbm_pages = 8, .lent_pages = 8});
  Actor& who = actor(0);
  Region& region = evicted(who, 6);
  ASSERT_EQ(pages_in_peer(region), 6u);
  Region& own = allocate(7, 1);
  settle();
  EXPECT_EQ(pages_in_peer(region), 1u);
  EXPECT_EQ(inside->counters().peer_returned_bytes, 5 * kPageBytes);
  Actor& lender = actor(1);
  for (std::uint32_t i = 0; i < 7; ++i) write(lender, writing(own, i), 0x60);
  for (std::uint32_t i = 0; i < 7; ++i) EXPECT_TRUE(in_hbm(own, i)) << i;
  expect_all_stored(region);
  for (std::uint32_t i = 0; i < 6; ++i) expect_bytes(who, region, i, value(i));
}

TEST_F(Lend, WhatIsFreedIsLentAgain) {
  start({.devices = 2, .hbm_pages = 8, .lent_pages = 8});
  Actor& who = actor(0);
  Actor& lender = actor(1);
  Region& own = allocate(8, 1);
  for (std::uint32_t i = 0; i < 8; ++i) write_to_the_end(lender, writing(own, i), 0x60);
  Region& first = evicted(who, 2);
  EXPECT_EQ(pages_in_peer(first), 0u);
  ASSERT_TRUE(free(own));
  settle();
  Region& second = evicted(who, 2);
  EXPECT_EQ(pages_in_peer(second), 2u);
  expect_all_stored(second);
}

TEST_F(Lend, APageInUseInPlaceLeavesWhenItsWorkIsDone) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 1);
  ASSERT_TRUE(advise(writing(region, 0), VMEM_ADVISE_IN_PLACE));
  ASSERT_TRUE(acquire(who, writing(region, 0)));
  ASSERT_TRUE(in_place(region, 0) && in_peer(region, 0));
  Gate busy = gate(who);
  fill(who, writing(region, 0), 0x44);
  release(who, writing(region, 0));
  allocate(4, 1);
  steps(50);
  EXPECT_TRUE(in_peer(region, 0)) << "a kernel still uses it";
  busy.open();
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  expect_stored(region, 0, 0x44);
}

TEST_F(Lend, APageHeldByAnAcquireLeavesAfterItsRelease) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 1);
  ASSERT_TRUE(advise(writing(region, 0), VMEM_ADVISE_IN_PLACE));
  ASSERT_TRUE(acquire(who, writing(region, 0)));
  allocate(4, 1);
  steps(50);
  EXPECT_TRUE(in_place(region, 0) && in_peer(region, 0));
  fill(who, writing(region, 0), 0x43);
  release(who, writing(region, 0));
  finish_work(who);
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  expect_stored(region, 0, 0x43);
}

TEST_F(Lend, ALoadDuringTheMoveWaitsForIt) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 1);
  lent->hold_back(Direction::load);
  allocate(4, 1);
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  ASSERT_TRUE(acquire(who, reading(region, 0)));
  EXPECT_TRUE(state(region, 0).has(PageState::kPending)) << "its bytes are on their way";
  release(who, reading(region, 0));
  lent->let_go(Direction::load);
  expect_bytes(who, region, 0, value(0));
}

TEST_F(Lend, AMoveThatFailsLeavesThePageWhereItWas) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 1);
  lent->hold_back(Direction::load);
  lent->answer_next(Direction::load, Outcome::failed);
  allocate(4, 1);
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  lent->let_go(Direction::load);
  ASSERT_TRUE(step_until([&] { return lent->submitted(Direction::load) == 2; })) << "the next try";
  EXPECT_FALSE(state(region, 0).has(PageState::kLost));
  settle();
  EXPECT_TRUE(in_host(region, 0));
  expect_stored(region, 0, value(0));
}

TEST_F(Lend, AMoveThatFailsUnderALoadIsReportedAndThePageIsKept) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 1);
  lent->hold_back(Direction::load);
  lent->answer_next(Direction::load, Outcome::failed);
  allocate(4, 1);
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  ASSERT_TRUE(acquire(who, reading(region, 0)));
  release(who, reading(region, 0));
  lent->let_go(Direction::load);
  settle();
  finish_work(who);
  const Status told = acquire(who, reading(region, 0));
  ASSERT_FALSE(told) << "the frame has nobody knows what";
  EXPECT_EQ(told.error().status, VMEM_ERROR_DRIVER);
  expect_bytes(who, region, 0, value(0));
}

TEST_F(Lend, APageWhoseMoveFailedUnderALoadGivesBackBothItsSlotsWhenItsRegionEnds) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 1);
  lent->hold_back(Direction::load);
  lent->answer_next(Direction::load, Outcome::failed);
  allocate(4, 1);
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  ASSERT_TRUE(acquire(who, reading(region, 0)));
  release(who, reading(region, 0));
  lent->let_go(Direction::load);
  settle();
  ASSERT_TRUE(free(region, &who));
  finish_work(who);
  settle();
  EXPECT_EQ(lent->usage().used_bytes, 0u);
  EXPECT_EQ(tier->usage().used_bytes, 0u);
}

TEST_F(Lend, ARegionFreedDuringTheMoveEndsAfterIt) {
  start({.devices = 2, .hbm_pages = 4, .lent_pages = 4});
  Actor& who = actor(0);
  Region& region = evicted(who, 2);
  lent->hold_back(Direction::load);
  allocate(4, 1);
  ASSERT_TRUE(step_until([&] { return in_host(region, 0); }));
  ASSERT_TRUE(free(region));
  steps(50);
  lent->let_go(Direction::load);
  settle();
  EXPECT_EQ(lent->usage().used_bytes, 0u);
  EXPECT_EQ(tier->usage().used_bytes, 0u);
}

TEST_F(Lend, WhatIsLentCountsAsAPlaceForPages) {
  start({.hbm_pages = 8, .host_pages = 4, .lent_pages = 8});
  // 8 pages of HBM less transit, and 8 lent: these 14 need no host memory.
  EXPECT_TRUE(try_allocate(14));
  const auto refused = try_allocate(8);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(refused.error().message.find("what other GPUs lend"), std::string::npos) << refused.error().message;
}

TEST_F(Lend, ALenderCannotTakeBackWhatNothingElseCanHold) {
  start({.devices = 2, .hbm_pages = 8, .host_pages = 4, .lent_pages = 8});
  Actor& who = actor(0);
  Region& region = allocate(13, 0);
  for (std::uint32_t i = 0; i < 13; ++i) write_to_the_end(who, writing(region, i), value(i));
  const auto refused = try_allocate(7, 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  settle();
  expect_all_stored(region);
}

TEST_F(Lend, WhatMustLeaveMakesRoomBelowHostMemory) {
  start({.devices = 2, .hbm_pages = 8, .host_pages = 4, .spill_pages = 16, .lent_pages = 8});
  Actor& who = actor(0);
  Region& region = evicted(who, 8);
  ASSERT_EQ(pages_in_peer(region), 8u);
  allocate(7, 1);
  ASSERT_TRUE(step_until([&] { return pages_in_peer(region) <= 1; }));
  settle();
  expect_all_stored(region);
  for (std::uint32_t i = 0; i < 8; ++i) expect_bytes(who, region, i, value(i));
}

}  // namespace
}  // namespace vmem::migration
