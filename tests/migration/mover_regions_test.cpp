// Allocation, free and reuse; several devices.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class Regions : public MoverTest {};

TEST_F(Regions, AHeldRegionIsNotFreedAndNothingChanges) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  write(a, writing(region, 0), 1);
  ASSERT_TRUE(acquire(a, reading(region, 1)));
  const Status refused = free(region, &a);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_IN_USE);
  check();
  EXPECT_EQ(region.state.load(), RegionState::live);
  release(a, reading(region, 1));
  expect_bytes(a, region, 0, 1);
  EXPECT_TRUE(free(region, &a));
}

TEST_F(Regions, PagesAreReleasedOnlyAfterTheWorkReleasedOnThem) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate kernel = gate(a);
  fill(a, writing(region, 0), 1);
  release(a, writing(region, 0));
  ASSERT_TRUE(free(region));
  steps();
  EXPECT_TRUE(in_hbm(region, 0)) << "the kernel may still write it";
  kernel.open();
  finish_work(a);
  steps();
  EXPECT_EQ(region.state.load(), RegionState::empty);
  EXPECT_EQ(inside->hbm().used_bytes(), 0u);
}

TEST_F(Regions, PagesAreReleasedOnlyAfterTheWorkQueuedBeforeTheFree) {
  start();
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  write(a, writing(region, 0), 1);
  finish_work(a);
  Gate kernel = gate(b);
  ASSERT_TRUE(free(region, &b));
  steps();
  EXPECT_EQ(region.state.load(), RegionState::ending);
  kernel.open();
  finish_work(b);
  steps();
  EXPECT_EQ(region.state.load(), RegionState::empty);
}

// The mover drains the use logs at the start of a step. A use released between that and the check
// of the holds must still be seen.
TEST_F(Regions, WorkReleasedWhileItsRegionIsBeingFreedIsSeen) {
  start();
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate kernel = gate(a);
  // A request before the free in the same step. The thread releases during its allocation, which
  // ends the request without another drain.
  AdviseRequest before;
  before.run = {&allocate(1), 0, 1};
  before.advice = VMEM_ADVISE_EVICT;
  write_to_the_end(b, writing(*before.run.region, 0), 1);
  tier->later_allocations = 2;
  tier->on_allocate = [&] {
    log_use(a, writing(region, 0));
    withdraw(a, writing(region, 0));
  };
  FreeRequest free_it;
  free_it.region = &region;
  free_it.first_granule = region.first.index;
  mover->post(before);
  mover->post(free_it);
  steps();
  ASSERT_TRUE(free_it.done() && free_it.result());
  EXPECT_EQ(region.state.load(), RegionState::ending);
  EXPECT_TRUE(in_hbm(region, 0)) << "the kernel may still write it";
  kernel.open();
  EXPECT_TRUE(step_until([&] { return region.state.load() == RegionState::empty; }));
}

TEST_F(Regions, FreedMemoryIsNeverWrittenBack) {
  start();
  Region& region = allocate(3);
  Actor& a = actor();
  write(a, writing(region, 0, 3), 1);
  ASSERT_TRUE(free(region, &a));
  finish_work(a);
  steps();
  EXPECT_EQ(region.state.load(), RegionState::empty);
  EXPECT_EQ(tier->submitted(Direction::store), 0u);
}

TEST_F(Regions, AnEndingRegionIsNoVictim) {
  start({.hbm_pages = 2});
  Region& region = allocate(2);
  Actor &a = actor(), &b = actor();
  write(a, writing(region, 0, 2), 1);
  finish_work(a);
  Gate kernel = gate(b);
  policy->offer = {region.page_id(0), region.page_id(1)};
  ASSERT_TRUE(free(region, &b));
  Region& other = allocate(1);
  ASSERT_TRUE(acquire(a, writing(other, 0)));
  EXPECT_EQ(tier->submitted(Direction::store), 0u);
  release(a, writing(other, 0));
  kernel.open();
}

// Host memory is full of replicas of pages in HBM, which a kernel uses. malloc counted each page
// once, so an acquire that finds no frame reclaims such a slot.
struct SecondCopies : Regions {
  // The pages in HBM are of a region that is freed while the kernel runs, or kept.
  void give_way(bool freed, bool read_mostly) {
    start({.hbm_pages = 4, .host_pages = 6});
    Region &in_hbm = allocate(4), &in_host = allocate(2);
    Actor &a = actor(), &b = actor();
    for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(cpu_write(in_hbm, i, 1));
    for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(cpu_write(in_host, i, 2));
    if (read_mostly) {
      ASSERT_TRUE(advise(reading(in_hbm, 0, 4), VMEM_ADVISE_READ_MOSTLY));
    }
    ASSERT_TRUE(acquire(a, reading(in_hbm, 0, 4)));
    settle();
    Gate kernel = gate(a);
    release(a, reading(in_hbm, 0, 4));
    if (freed) {
      ASSERT_TRUE(free(in_hbm, &a));
    }
    ASSERT_EQ(tier->usage().used_bytes, 6 * kPageBytes);
    Region& region = allocate(1);
    const auto waits = begin(b, writing(region, 0));
    steps();
    now_us += 2 * acquire_wait_us;
    const Status served = complete(*waits);
    ASSERT_TRUE(served) << served.error().message;
    EXPECT_TRUE(in_place(region, 0));
    EXPECT_EQ(in_hbm.state.load(), freed ? RegionState::ending : RegionState::live);
    release(b, writing(region, 0));
    kernel.open();
  }
};

TEST_F(SecondCopies, OfALiveRegionGiveWay) { give_way(false, false); }
TEST_F(SecondCopies, OfAnEndingRegionGiveWay) { give_way(true, false); }
TEST_F(SecondCopies, OfALiveRegionThatIsReadMostlyGiveWay) { give_way(false, true); }
TEST_F(SecondCopies, OfAnEndingRegionThatIsReadMostlyGiveWay) { give_way(true, true); }

TEST_F(Regions, AddressesAreUsedAgainAndShowOnlyTheNewContents) {
  start({.hbm_pages = 2});
  Actor& a = actor();
  std::uint32_t first_granule = 0;
  for (int round = 0; round < 4; ++round) {
    Region& region = allocate(2);
    if (round == 0) first_granule = region.first.index;
    EXPECT_EQ(region.first.index, first_granule);
    write(a, writing(region, 0, 2), std::uint8_t(round));
    finish_work(a);
    tier->hold_back(Direction::store);
    evict(reading(region, 0));  // a store of the old contents is in flight at the free
    ASSERT_TRUE(free(region, &a));
    finish_work(a);
    steps();
    EXPECT_EQ(region.state.load(), RegionState::ending) << "its slot is being written";
    tier->let_go(Direction::store);
    settle();
    steps();
    EXPECT_EQ(region.state.load(), RegionState::empty);
  }
}

TEST_F(Regions, AFreeDuringALoadWaitsForIt) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 1));
  tier->hold_back(Direction::load);
  prefetch(reading(region, 0));
  ASSERT_TRUE(free(region, &a));
  finish_work(a);
  steps();
  EXPECT_EQ(region.state.load(), RegionState::ending);
  tier->let_go(Direction::load);
  settle();
  steps();
  EXPECT_EQ(region.state.load(), RegionState::empty);
}

TEST_F(Regions, ALoadWhoseMappingFailedOutlivesNoRegion) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 1));
  tier->hold_back(Direction::load);
  faults->fail_nth("cuMemSetAccess", 2, CUDA_ERROR_UNKNOWN);  // the first is for the frame's window
  ASSERT_FALSE(acquire(a, reading(region, 0)));
  check();
  ASSERT_TRUE(free(region, &a));
  finish_work(a);
  steps();
  EXPECT_EQ(region.state.load(), RegionState::ending) << "the load reads its slot";
  tier->let_go(Direction::load);
  settle();
  steps();
  EXPECT_EQ(region.state.load(), RegionState::empty);
}

TEST_F(Regions, ASecondFreeIsRefused) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  Gate kernel = gate(a);
  ASSERT_TRUE(free(region, &a));
  EXPECT_EQ(free(region, &a).error().status, VMEM_ERROR_INVALID_POINTER);
  kernel.open();
}

// Two threads free one allocation; in between, another allocation reuses its record.
TEST_F(Regions, AFreeOfWhatWasThereBeforeIsRefused) {
  start();
  Region& region = allocate(1);
  FreeRequest late;
  late.region = &region;
  late.first_granule = region.first.index + 1;
  EXPECT_EQ(ask(late).error().status, VMEM_ERROR_INVALID_POINTER);
  EXPECT_EQ(region.state.load(), RegionState::live);
}

TEST_F(Regions, RequestsThatNameAFreedRegionAreRefused) {
  start();
  Region& region = allocate(2);
  ASSERT_TRUE(free(region));
  steps();
  ASSERT_EQ(region.state.load(), RegionState::empty);
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  EXPECT_EQ(ask(open).error().status, VMEM_ERROR_INVALID_POINTER);
  PrefetchRequest ahead;
  ahead.run = {&region, 0, 2};
  EXPECT_EQ(ask(ahead).error().status, VMEM_ERROR_INVALID_POINTER);
  EXPECT_EQ(advise(reading(region, 0, 2), VMEM_ADVISE_EVICT).error().status, VMEM_ERROR_INVALID_POINTER);
  QueryRequest query;
  query.run = {&region, 0, 1};
  EXPECT_EQ(ask(query).error().status, VMEM_ERROR_INVALID_POINTER);
}

TEST_F(Regions, MoreThanCanBeBackedIsRefusedAndFreedMemoryCountsAgain) {
  start({.hbm_pages = 4, .host_pages = 4});
  Actor& a = actor();
  Region& most = allocate(6);  // 3 in HBM, 3 in host memory: a page of each is for transit
  EXPECT_EQ(try_allocate(1).error().status, VMEM_ERROR_OUT_OF_MEMORY);
  check();
  Gate kernel = gate(a);
  ASSERT_TRUE(free(most, &a));
  AllocateRequest waits;  // waits for the ending region's memory
  waits.bytes = 6 * kPageBytes;
  mover->post(waits);
  steps();
  EXPECT_FALSE(waits.done());
  kernel.open();
  EXPECT_TRUE(step_until([&] { return waits.done(); }));
  EXPECT_TRUE(waits.result());
}

// The kernel may itself wait for what the allocating thread does next.
TEST_F(Regions, AnAllocationWaitsForFreedMemoryInUseButNotForEver) {
  start({.hbm_pages = 4, .host_pages = 4});
  const std::uint32_t all = [&] {
    std::uint32_t pages = 1;
    for (; auto region = try_allocate(pages); ++pages) EXPECT_TRUE(free(**region)), steps();
    return pages - 1;
  }();
  Region& region = allocate(all);
  Actor& a = actor();
  Gate kernel = gate(a);
  ASSERT_TRUE(free(region, &a));
  AllocateRequest request;
  request.bytes = all * kPageBytes;
  mover->post(request);
  steps();
  EXPECT_FALSE(request.done());
  now_us += acquire_wait_us;
  EXPECT_TRUE(step_until([&] { return request.done(); }));
  ASSERT_FALSE(request.result());
  EXPECT_EQ(request.result().error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(request.result().error().message.find("freed is still used"), std::string::npos);

  AllocateRequest again;
  again.bytes = all * kPageBytes;
  mover->post(again);
  steps();
  EXPECT_FALSE(again.done());
  kernel.open();
  EXPECT_TRUE(step_until([&] { return again.done(); }));
  EXPECT_TRUE(again.result());
}

TEST_F(Regions, ShutdownIsRefusedWhileAnythingIsHeld) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  EndAllRequest end;
  EXPECT_EQ(ask(end).error().status, VMEM_ERROR_IN_USE);
  check();
  release(a, writing(region, 0));
  expect_bytes(a, region, 0, 0);
}

// ---- devices ----

TEST_F(Regions, AnotherDeviceIsLetInToEveryMappingAndToLaterOnes) {
  start({.devices = 2});
  Region& region = allocate(2, 0);
  Actor &near = actor(0), &far = actor(1);
  write(near, writing(region, 0), 5);
  finish_work(near);
  const auto foreign = begin(far, reading(region, 0));
  EXPECT_FALSE(foreign->hit) << "the mover opens it first";
  ASSERT_TRUE(complete(*foreign));
  release(far, reading(region, 0));
  PeerAccessRequest open;
  open.region = &region;
  open.device = 1;
  ASSERT_TRUE(ask(open));
  check();  // compares both devices with the driver
  write(near, writing(region, 1), 6);
  finish_work(near);
  check();
  expect_bytes(far, region, 0, 5);
  expect_bytes(far, region, 1, 6);
  Gate kernel = gate(far);
  ASSERT_TRUE(acquire(far, reading(region, 0)));
  release(far, reading(region, 0));
  evict(reading(region, 0));
  EXPECT_TRUE(in_hbm(region, 0)) << "the other device's work counts";
}

TEST_F(Regions, DevicesWithoutAPathAreRefused) {
  start({.devices = 2, .peers = false});
  Region& region = allocate(1, 0);
  PeerAccessRequest open;
  open.region = &region;
  open.device = 1;
  EXPECT_EQ(ask(open).error().status, VMEM_ERROR_UNSUPPORTED);
  check();
}

TEST_F(Regions, APeerThatCannotBeLetInToOneMappingIsLetInToNoneAsFarAsAnybodyKnows) {
  start({.devices = 2});
  Region& region = allocate(2, 0);
  Actor& near = actor(0);
  write(near, writing(region, 0, 2), 5);
  finish_work(near);
  PeerAccessRequest open;
  open.region = &region;
  open.device = 1;
  faults->fail_nth("cuMemSetAccess", 2, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(ask(open));
  EXPECT_EQ(region.devices.load(), 1u);
  check();
  PeerAccessRequest again;
  again.region = &region;
  again.device = 1;
  EXPECT_TRUE(ask(again));
  check();
}

TEST_F(Regions, EachDevicesHbmServesItsOwnRegions) {
  start({.devices = 2, .hbm_pages = 2});
  Region& zero = allocate(3, 0);
  Region& one = allocate(3, 1);
  Actor &a = actor(0), &b = actor(1);
  for (std::uint32_t i = 0; i < 3; ++i) {
    write(a, writing(zero, i), std::uint8_t(1 + i));
    write(b, writing(one, i), std::uint8_t(11 + i));
    finish_work(a);
    finish_work(b);
    check();
  }
  for (std::uint32_t i = 0; i < 3; ++i) {
    expect_bytes(a, zero, i, std::uint8_t(1 + i));
    expect_bytes(b, one, i, std::uint8_t(11 + i));
  }
}

// Undeclared allocations are mapped at once, in several steps if large.
struct MappedAtOnce : MoverTest {
  static constexpr std::uint32_t kPages = 200;
  AllocateRequest request;
  void begin_allocation() {
    start({.hbm_pages = 2 * kPages, .host_pages = 16});
    request.bytes = kPages * kPageBytes;
    request.kind = RegionKind::undeclared;
    mover->post(request);
    mover->step();
    ASSERT_FALSE(request.done());
    ASSERT_NE(request.region, nullptr);
  }
};

TEST_F(MappedAtOnce, AnotherMayNameItMeanwhile) {
  begin_allocation();
  Actor& other = actor();
  const auto stale = begin(other, launching(*request.region, 0, kPages));
  ASSERT_TRUE(complete(*stale));
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  EXPECT_TRUE(request.result());
  check();
  for (std::uint32_t i = 0; i < kPages; ++i) EXPECT_TRUE(in_hbm(*request.region, i)) << i;
  release(other, stale->range);
}

TEST_F(MappedAtOnce, EverythingMayEndMeanwhile) {
  begin_allocation();
  EndAllRequest end;
  mover->post(end);
  ASSERT_TRUE(step_until([&] { return request.done() && end.done(); }));
  EXPECT_TRUE(end.result());
  ASSERT_FALSE(request.result());
  EXPECT_EQ(request.result().error().status, VMEM_ERROR_NOT_INITIALIZED);
  check();
}

TEST_F(MappedAtOnce, NothingIsMappedThatWouldNearlyFillHbm) {
  start({.hbm_pages = 16, .host_pages = 16});
  request.bytes = 15 * kPageBytes;
  request.kind = RegionKind::undeclared;
  ASSERT_TRUE(ask(request));
  for (std::uint32_t i = 0; i < 15; ++i) EXPECT_FALSE(in_hbm(*request.region, i)) << i;
}

// Host memory needs room for pages in transit while others wait there.
TEST_F(Regions, HostMemoryHoldsEightPagesAtLeast) {
  start({.hbm_pages = 256, .host_pages = 32, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(128).page_bytes(), 4 * kPageBytes);
  AllocateRequest undeclared;
  undeclared.bytes = 16 * kPageBytes;
  undeclared.kind = RegionKind::undeclared;
  ASSERT_TRUE(ask(undeclared));
  EXPECT_EQ(undeclared.region->page_bytes(), 4 * kPageBytes);
}
TEST_F(Regions, WithLittleHostMemoryPagesAreAsSmallAsTheyCanBe) {
  start({.hbm_pages = 256, .host_pages = 8, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(128).page_bytes(), kPageBytes);
}
TEST_F(Regions, WithoutOtherTiersASixteenthOfHbmMayBeAPage) {
  start({.hbm_pages = 256, .host_pages = 256, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(128).page_bytes(), 16 * kPageBytes);
}
// A quarter of HBM is for pages on their way, of which a network needs many.
TEST_F(Regions, WhatMayOverflowToOtherTiersIsInMorePages) {
  start({.hbm_pages = 256, .host_pages = 256, .spill_pages = 512, .page_bytes = std::nullopt});
  EXPECT_EQ(allocate(128).page_bytes(), 4 * kPageBytes);
}

}  // namespace
}  // namespace vmem::migration
