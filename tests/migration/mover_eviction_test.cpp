// Conditions that keep a page from eviction, each arising when it is hardest to see.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class Eviction : public MoverTest {
 protected:
  // One page, written by completed work, so it can be evicted.
  void SetUp() override {
    start();
    region = &allocate(2);
    a = &actor();
    b = &actor();
    write(*a, writing(*region, 0), 5);
    finish_work(*a);
    steps();
  }
  void expect_untouched(std::uint64_t cancels) {
    check();
    EXPECT_TRUE(in_hbm(*region, 0));
    EXPECT_TRUE(state(*region, 0).allows(Access::write));
    EXPECT_EQ(inside->counters().evictions, 0u);
    EXPECT_EQ(inside->counters().eviction_cancels, cancels);
  }
  void expect_evictable() {
    finish_work(*a);
    finish_work(*b);
    evict_to_the_end(reading(*region, 0));
    EXPECT_FALSE(in_hbm(*region, 0));
    EXPECT_EQ(inside->counters().evictions, 1u);
    expect_bytes(*a, *region, 0, 5);
  }
  Region* region = nullptr;
  Actor* a = nullptr;
  Actor* b = nullptr;
};

TEST_F(Eviction, AHeldPageStays) {
  ASSERT_TRUE(acquire(*b, reading(*region, 0)));
  evict(reading(*region, 0));
  expect_untouched(0);
  release(*b, reading(*region, 0));
  expect_evictable();
}

TEST_F(Eviction, APageHeldTwiceStaysUntilTheSecondRelease) {
  ASSERT_TRUE(acquire(*b, reading(*region, 0)));
  ASSERT_TRUE(acquire(*b, reading(*region, 0)));
  release(*b, reading(*region, 0));
  evict(reading(*region, 0));
  expect_untouched(0);
  release(*b, reading(*region, 0));
  expect_evictable();
}

TEST_F(Eviction, APageWithUnfinishedWorkStays) {
  ASSERT_TRUE(acquire(*b, reading(*region, 0)));
  Gate kernel = gate(*b);
  release(*b, reading(*region, 0));
  for (int i = 0; i < 3; ++i) {
    evict(reading(*region, 0));
    steps();
  }
  expect_untouched(0);
  kernel.open();
  finish_work(*b);
  expect_evictable();
}

TEST_F(Eviction, UnfinishedWorkOnThreeStreamsAtOnceIsAllSeen) {
  Actor& c = actor();
  std::vector<std::unique_ptr<Gate>> kernels;
  for (Actor* each : {a, b, &c}) {
    ASSERT_TRUE(acquire(*each, reading(*region, 0)));
    kernels.push_back(std::make_unique<Gate>(*driver, each->stream));
    release(*each, reading(*region, 0));
    steps();
  }
  for (auto& kernel : kernels) {
    evict(reading(*region, 0));
    steps();
    expect_untouched(0);
    kernel->open();
  }
  for (Actor* each : {a, b, &c}) finish_work(*each);
  expect_evictable();
}

TEST_F(Eviction, APageOpenForTheCpuStays) {
  OpenPageRequest open;
  open.run = {region, 0, 1};
  ASSERT_TRUE(ask(open));
  evict(reading(*region, 0));
  expect_untouched(0);
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
  expect_evictable();
}

TEST_F(Eviction, APinnedPageStays) {
  ASSERT_TRUE(advise(reading(*region, 0), VMEM_ADVISE_PIN));
  evict(reading(*region, 0));
  expect_untouched(0);
  ASSERT_TRUE(advise(reading(*region, 0), VMEM_ADVISE_NORMAL));
  expect_evictable();
}

TEST_F(Eviction, APageWhoseLoadIsInFlightStays) {
  finish_work(*a);
  evict(reading(*region, 0));
  Region& other = allocate(4);
  write(*b, writing(other, 0, 4), 1);  // reuses the frame
  finish_work(*b);
  evict_to_the_end(reading(other, 0, 4));
  tier->hold_back(Direction::load);
  const std::uint64_t before = inside->counters().evictions;
  prefetch(reading(*region, 0));
  ASSERT_TRUE(in_hbm(*region, 0));
  evict(reading(*region, 0));
  EXPECT_TRUE(in_hbm(*region, 0));
  EXPECT_EQ(inside->counters().evictions, before);
  tier->let_go(Direction::load);
  settle();
  expect_bytes(*a, *region, 0, 5);
}

// The mover allocates a slot between its first check of the holds and revoking access. Its second
// check must find holds published during the allocation.
TEST_F(Eviction, AHoldPublishedAfterTheFirstLookCancels) {
  tier->on_allocate = [&] { EXPECT_TRUE(begin(*b, reading(*region, 0))->hit); };
  evict(reading(*region, 0));
  expect_untouched(1);
  evict(reading(*region, 0));
  expect_untouched(1);
  release(*b, reading(*region, 0));
  finish_work(*b);
  steps();
  evict(reading(*region, 0));
  EXPECT_FALSE(in_hbm(*region, 0));
}

TEST_F(Eviction, AUseLoggedAndItsHoldWithdrawnBetweenTheLooksCancels) {
  std::unique_ptr<Gate> kernel;
  tier->on_allocate = [&] {
    EXPECT_TRUE(begin(*b, reading(*region, 0))->hit);
    kernel = std::make_unique<Gate>(*driver, b->stream);
    log_use(*b, reading(*region, 0));
    withdraw(*b, reading(*region, 0));
  };
  evict(reading(*region, 0));
  expect_untouched(1);
  kernel->open();
  finish_work(*b);
  steps();
  evict(reading(*region, 0));
  steps();
  evict(reading(*region, 0));
  EXPECT_FALSE(in_hbm(*region, 0));
}

// During the unmap the page is still mapped, but its state must say that it is not usable.
TEST_F(Eviction, AThreadThatComesDuringTheUnmapMissesAndIsServedAfterIt) {
  std::unique_ptr<Acquire> late;
  faults->on_call([&](std::string_view call) {
    if (call != "cuMemUnmap" || late) return;
    late = begin(*b, reading(*region, 0));
    EXPECT_FALSE(late->hit);
  });
  evict(reading(*region, 0));
  faults->on_call(nullptr);
  ASSERT_TRUE(late);
  ASSERT_TRUE(complete(*late));
  check();
  EXPECT_TRUE(in_hbm(*region, 0));
  release(*b, reading(*region, 0));
  expect_bytes(*b, *region, 0, 5);
}

TEST_F(Eviction, AThreadThatComesWhileItsPageIsBeingMappedMissesUntilItIs) {
  std::unique_ptr<Acquire> early;
  faults->on_call([&](std::string_view call) {
    if (call != "cuMemSetAccess" || early) return;
    early = begin(*b, reading(*region, 1));
    EXPECT_FALSE(early->hit) << "mapped, but not accessible yet";
  });
  write(*a, writing(*region, 1), 1);
  faults->on_call(nullptr);
  ASSERT_TRUE(early);
  ASSERT_TRUE(complete(*early));
  release(*b, reading(*region, 1));
}

TEST_F(Eviction, AnUnmapThatFailsPutsTheStateBack) {
  faults->fail_nth("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(advise(reading(*region, 0), VMEM_ADVISE_EVICT));
  expect_untouched(0);
  EXPECT_TRUE(begin(*b, reading(*region, 0))->hit);
  release(*b, reading(*region, 0));
  finish_work(*b);
  steps();
  expect_evictable();
}

TEST_F(Eviction, AStoreThatCannotBeSubmittedKeepsTheFrame) {
  faults->fail_nth("cuMemcpyDtoHAsync", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(advise(reading(*region, 0), VMEM_ADVISE_EVICT));
  check();
  EXPECT_FALSE(in_hbm(*region, 0));
  EXPECT_NE(page(*region, 0).frame, kNoFrame);
  expect_bytes(*a, *region, 0, 5);
  EXPECT_EQ(tier->submitted(Direction::load), 0u);
}

TEST_F(Eviction, APageWithoutASlotYetIsEvictedWhenTheSlotIsThere) {
  tier->later_allocations = 2;
  evict(reading(*region, 0));  // tries twice
  expect_untouched(0);
  evict_to_the_end(reading(*region, 0));
  EXPECT_FALSE(in_hbm(*region, 0));
}

}  // namespace
}  // namespace vmem::migration
