// From files straight into frames where frames, slots or the GPU's progress are short.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class ArriveUnderPressure : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 16;
  void start_straight(const MachineShape& wanted) {
    start(wanted);
    user = &actor();
  }
  Region& known() {
    Region& region = allocate(kPages);
    for (std::uint32_t i = 0; i < kPages; ++i)
      write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
    for (int round = 0; round < 4; ++round) {
      for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
    }
    settle();
    return region;
  }
  std::uint32_t first_known_below(const Region& region) const {
    for (std::uint32_t i = 0; i < region.page_count; ++i) {
      if (below(region, i) && !in_host(region, i) && page(region, i).frame == kNoFrame &&
          page(region, i).spilled->known)
        return i;
    }
    ADD_FAILURE() << "no page is only below, and known";
    return 0;
  }
  // Whether it ends within `waits` of an acquire's patience, with the GPU making no progress.
  bool ends_within(const Acquire& acquire, int waits) {
    for (int i = 0; i < waits && !acquire.done(); ++i) {
      steps();
      now_us += acquire_wait_us;
    }
    return acquire.done();
  }
  bool rests() {
    for (int i = 0; i < 20000; ++i) {
      if (mover->step() == Mover::Next::sleep) return true;
      std::this_thread::yield();
    }
    return false;
  }
  Actor* user = nullptr;
};

const MachineShape kShape{.hbm_pages = 4, .host_pages = 8, .spill_pages = 16, .files = true, .straight = true};

// A kernel that fills the GPU and waits for what the program does after its acquire: the check of what has come finds no room.
TEST_F(ArriveUnderPressure, AnAcquireDoesNotWaitForEverForTheCheckOfWhatHasCome) {
  start_straight(kShape);
  Region& region = known();
  const std::uint32_t wanted = first_known_below(region);
  for (std::uint32_t i = 0; i < kPages; ++i) evict_to_the_end({&region, i});
  const std::uint64_t before = spill->into_frames;
  tier->hold_back(Direction::store);  // kernels that compare are among these
  const auto waiting = begin(*user, reading(region, wanted));
  EXPECT_TRUE(ends_within(*waiting, 1000)) << "1000 times as long as an acquire waits";
  EXPECT_EQ(spill->into_frames, before + 1);
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
  finish_work(*user);
}

// Stores of what changed only are kernels, too. The frame that such a one reads is waited for without end.
TEST_F(ArriveUnderPressure, AnAcquireDoesNotWaitForEverForAFrameThatIsBusy) {
  start_straight(kShape);
  Region& region = map_file(4);
  Region& full = allocate(4);
  for (std::uint32_t i = 0; i < 4; ++i) write_to_the_end(*user, writing(full, i), 0x70);
  tier->hold_back(Direction::store);
  evict({&full, 0, 4});
  const auto waiting = begin(*user, reading(region, 0));
  EXPECT_TRUE(ends_within(*waiting, 1000));
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
  finish_work(*user);
}

// The frames are on their way: they come free by themselves.
TEST_F(ArriveUnderPressure, HostMemoryThatIsFullIsNoReasonToFailWhileFramesAreReadInto) {
  start_straight({.hbm_pages = 4, .host_pages = 4, .files = true, .straight = true});
  Region& region = map_file(4);
  Region* mine = nullptr;
  for (std::uint32_t pages = 8; mine == nullptr && pages > 0; --pages) {
    if (auto got = try_allocate(pages)) mine = *got;
  }
  ASSERT_NE(mine, nullptr);
  // All but one of them in host memory, as far as it goes; nothing in HBM.
  std::uint32_t written = 0;
  for (; written + 1 < mine->page_count; ++written) write_to_the_end(*user, writing(*mine, written), 0x11);
  for (std::uint32_t i = 0; i < written; ++i) evict_to_the_end({mine, i});
  files->hold_back();
  prefetch(reading(region, 0, 4));
  steps();
  EXPECT_GT(files->into_frames, 0u);
  const auto waiting = begin(*user, writing(*mine, written));
  steps();
  files->let_go();
  const Status served = complete(*waiting);
  ASSERT_TRUE(served) << served.error().message;
  release(*user, waiting->range);
  finish_work(*user);
}

// More than fits, asked for ahead: each page that has come is given up for the next one before it is mapped.
TEST_F(ArriveUnderPressure, APrefetchOfMoreThanFitsEnds) {
  start_straight(kShape);
  Region& region = map_file(kPages);
  prefetch(reading(region, 0, kPages));
  const bool ended = rests();
  std::uint32_t mapped = 0;
  for (std::uint32_t i = 0; i < kPages; ++i) mapped += in_hbm(region, i) ? 1 : 0;
  EXPECT_GT(mapped, 0u);
  EXPECT_LE(files->loads, 2 * kPages);
  EXPECT_TRUE(ended);
}

TEST_F(ArriveUnderPressure, APrefetchOfMoreThanFitsEndsWithThePolicy) {
  start_straight({.hbm_pages = 4, .host_pages = 8, .files = true, .straight = true, .real_policy = true});
  Region& region = map_file(kPages);
  prefetch(reading(region, 0, kPages));
  const bool ended = rests();
  EXPECT_LE(files->loads, 2 * kPages);
  EXPECT_TRUE(ended);
}

TEST_F(ArriveUnderPressure, APlanOfMoreThanFitsEnds) {
  start_straight(kShape);
  Region& region = map_file(kPages);
  expect_bytes(*user, region, 0, 0);
  for (std::uint32_t i = 1; i < kPages; ++i) policy->ahead.push_back(region.page_id(i));
  expect_bytes(*user, region, 0, 0);
  const bool ended = rests();
  EXPECT_LE(files->loads, 2 * kPages);
  EXPECT_TRUE(ended);
}

// A frame that a copy still reads is asked for again and again, beside others that nothing reads.
TEST_F(ArriveUnderPressure, AFrameThatIsNotBusyIsTakenBeforeOneThatIs) {
  start_straight(kShape);
  Region& others = map_file(3);
  Region& region = map_file(1);
  Region& written = allocate(1);
  write_to_the_end(*user, writing(written, 0), 0x70);
  for (std::uint32_t i = 0; i < 3; ++i) expect_bytes(*user, others, i, static_cast<unsigned char>(i));
  tier->hold_back(Direction::store);
  evict({&written, 0});  // the eldest of the free frames, and busy
  evict({&others, 0, 3});
  const auto waiting = begin(*user, reading(region, 0));
  EXPECT_TRUE(ends_within(*waiting, 20)) << "three frames are free, and nothing uses them";
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
  finish_work(*user);
}

// As without a way straight to HBM: what holds every frame is not waited for, in place it is at once.
TEST_F(ArriveUnderPressure, WithEveryFrameHeldNobodyWaits) {
  for (const bool straight : {false, true}) {
    SCOPED_TRACE(straight);
    start_straight({.hbm_pages = 4, .host_pages = 8, .files = true, .straight = straight});
    Region& held = allocate(4);
    Region& region = map_file(4);
    const Range all_frames = writing(held, 0, 4);
    ASSERT_TRUE(acquire(*user, all_frames));
    Actor& other = actor();
    const auto waiting = begin(other, reading(region, 3));
    steps(200);  // no time passes
    EXPECT_TRUE(waiting->done());
    while (!waiting->done()) {
      steps();
      now_us += acquire_wait_us;
    }
    ASSERT_TRUE(complete(*waiting));
    release(other, waiting->range);
    release(*user, all_frames);
    finish_work(other);
    finish_work(*user);
    finish();
  }
}

// Of a range larger than HBM the pages that go through host memory set out together.
TEST_F(ArriveUnderPressure, WhatFindsNoFrameSetsOutForHostMemoryAhead) {
  for (const bool straight : {false, true}) {
    SCOPED_TRACE(straight);
    start_straight({.hbm_pages = 4, .host_pages = 12, .files = true, .straight = straight});
    Region& held = allocate(4);
    Region& region = map_file(6);
    const Range all_frames = writing(held, 0, 4);
    ASSERT_TRUE(acquire(*user, all_frames));
    Actor& other = actor();
    files->hold_back();
    const auto waiting = begin(other, reading(region, 0, 6));
    for (int i = 0; i < 20; ++i) {
      steps();
      now_us += acquire_wait_us;
    }
    EXPECT_EQ(files->loads, 6u) << "under way at a time";
    files->let_go();
    for (int i = 0; i < 200 && !waiting->done(); ++i) {
      steps();
      now_us += acquire_wait_us;
    }
    ASSERT_TRUE(complete(*waiting));
    release(other, waiting->range);
    release(*user, all_frames);
    finish_work(other);
    finish_work(*user);
    finish();
  }
}

TEST_F(ArriveUnderPressure, AdviceToStayInPlaceIsTakenWhileAPageIsOnItsWay) {
  start_straight(kShape);
  Region& region = map_file(4);
  files->hold_back();
  prefetch(reading(region, 1));
  steps();
  ASSERT_TRUE(advise(reading(region, 1), VMEM_ADVISE_IN_PLACE));
  files->let_go();
  settle();
  expect_bytes(*user, region, 1, 1);
  EXPECT_TRUE(in_place(region, 1));
}

// A page that is being compared is mapped again: nothing was fetched.
TEST_F(ArriveUnderPressure, WhatIsMappedAgainWhileItIsComparedWasNotFetched) {
  start_straight(kShape);
  Region& region = known();
  const std::uint32_t in = first_known_below(region);
  expect_bytes(*user, region, in, static_cast<unsigned char>(in));
  tier->hold_back(Direction::store);
  evict({&region, in});
  ASSERT_EQ(page(region, in).mapped, Mapped::nothing);
  const std::uint64_t before = inside->counters().prefetched_bytes;
  prefetch(reading(region, in));
  steps();
  EXPECT_TRUE(in_hbm(region, in));
  EXPECT_EQ(inside->counters().prefetched_bytes, before);
  tier->let_go(Direction::store);
  settle();
}

}  // namespace
}  // namespace vmem::migration
