// Reads directly from files and the tier below into frames, bypassing host memory.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;
using tiers::Outcome;

// Four frames and eight slots; regions of files, and a spill tier of 16 pages.
class Arrive : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 16;
  void start_straight(bool wanted = true, std::uint32_t hbm_pages = 4) {
    start({.hbm_pages = hbm_pages, .host_pages = 8, .spill_pages = 16, .files = true, .straight = wanted});
    user = &actor();
  }
  std::uint64_t slots() const { return tier->usage().used_bytes / kPageBytes; }
  // A region of 16 pages, each filled with its index, whose spilled pages have known fingerprints.
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
  bool only_below(const Region& region, std::uint32_t i) const {
    return below(region, i) && !in_host(region, i) && page(region, i).frame == kNoFrame;
  }
  std::uint32_t first_known_below(const Region& region) const {
    for (std::uint32_t i = 0; i < region.page_count; ++i) {
      if (only_below(region, i) && page(region, i).spilled->fingerprint.has_value()) return i;
    }
    ADD_FAILURE() << "no page is only below, and known";
    return 0;
  }
  Actor* user = nullptr;
};

TEST_F(Arrive, PagesOfFilesTakeNoSlot) {
  start_straight();
  Region& region = map_file(kPages);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      expect_bytes(*user, region, i, static_cast<unsigned char>(i));
      EXPECT_EQ(slots(), 0u);
      check();
    }
  }
  EXPECT_EQ(files->into_frames, files->loads);
  EXPECT_EQ(inside->counters().read_to_hbm_bytes, files->loads * kPageBytes);
  EXPECT_EQ(inside->counters().file_read_bytes, files->loads * kPageBytes);
  EXPECT_FALSE(state(region, kPages - 1).allows(Access::write));
}

TEST_F(Arrive, WithoutAWayPagesComeThroughHostMemory) {
  start_straight(false);
  Region& region = map_file(4);
  for (std::uint32_t i = 0; i < 4; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  EXPECT_EQ(files->into_frames, 0u);
  EXPECT_EQ(inside->counters().read_to_hbm_bytes, 0u);
}

TEST_F(Arrive, TheNextPagesOfARangeSetOutWhileTheFirstIsOnItsWay) {
  start_straight(true, 8);
  Region& region = map_file(kPages);
  files->hold_back();
  const auto waiting = begin(*user, reading(region, 2, 6));
  steps();
  EXPECT_EQ(files->into_frames, 6u);
  EXPECT_FALSE(waiting->done());
  check();
  files->let_go();
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
}

TEST_F(Arrive, PrefetchBringsPagesIntoFramesAndMapsThem) {
  start_straight(true, 8);
  Region& region = map_file(kPages);
  prefetch(reading(region, 0, 6));
  ASSERT_TRUE(step_until([&] {
    for (std::uint32_t i = 0; i < 6; ++i) {
      if (!in_hbm(region, i)) return false;
    }
    return true;
  }));
  EXPECT_EQ(files->into_frames, 6u);
  EXPECT_EQ(slots(), 0u);
  EXPECT_EQ(inside->counters().prefetched_bytes, 6 * kPageBytes);
}

TEST_F(Arrive, APageBelowComesSoOnceTheGpuKnowsItsBytes) {
  start_straight();
  Region& region = allocate(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
  settle();
  for (std::uint32_t i = 0; i < kPages; ++i) {
    const std::uint64_t before = spill->into_frames;
    const bool nobody_knows = only_below(region, i) && !page(region, i).spilled->fingerprint.has_value();
    expect_bytes(*user, region, i, static_cast<unsigned char>(i));
    if (nobody_knows) {
      EXPECT_EQ(spill->into_frames, before) << "page " << i << ": nothing to compare it with";
    }
  }
  const std::uint64_t first = spill->into_frames;
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      expect_bytes(*user, region, i, static_cast<unsigned char>(i));
      check();
    }
  }
  EXPECT_GT(spill->into_frames, first + kPages / 4);
  EXPECT_EQ(inside->counters().read_to_hbm_bytes, spill->into_frames * kPageBytes);
}

TEST_F(Arrive, WrongBytesNeverReachAProgram) {
  start_straight();
  Region& region = known();
  const std::uint32_t wrong = first_known_below(region);
  const std::uint64_t before = spill->into_frames;
  spill->wrong_bytes = 1;
  expect_bytes(*user, region, wrong, static_cast<unsigned char>(wrong));
  EXPECT_EQ(spill->into_frames, before + 1);
  EXPECT_EQ(inside->counters().read_to_hbm_failures, 1u);
  EXPECT_TRUE(page(region, wrong).spilled->route == pagetable::SpilledCopy::Route::through_host);
  check();
}

TEST_F(Arrive, AReadThatFailsIsFollowedByOneThroughHostMemory) {
  start_straight();
  Region& mapped = map_file(4);
  files->answer_next(Outcome::failed, "as scripted");
  expect_bytes(*user, mapped, 1, 1);
  EXPECT_EQ(files->into_frames, 1u);
  EXPECT_EQ(files->loads, 2u);
  Region& region = known();
  const std::uint32_t failing = first_known_below(region);
  spill->answer_next(Direction::load, Outcome::failed);
  expect_bytes(*user, region, failing, static_cast<unsigned char>(failing));
  EXPECT_EQ(inside->counters().read_to_hbm_failures, 2u);
}

TEST_F(Arrive, WhatIsLostIsFoundOutThroughHostMemory) {
  start_straight();
  Region& region = map_file(4);
  files->answer_next(Outcome::lost, "scripted.bin shrank");
  files->answer_next(Outcome::lost, "scripted.bin shrank");
  const Status acquired = acquire(*user, reading(region, 2));
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().status, VMEM_ERROR_LOST);
  EXPECT_NE(acquired.error().message.find("scripted.bin shrank"), std::string::npos) << acquired.error().message;
  expect_bytes(*user, region, 1, 1);
}

TEST_F(Arrive, AStrayWriteToAPageThatCameSoIsKept) {
  start_straight();
  Region& region = known();
  const std::uint32_t stray = first_known_below(region);
  const std::uint64_t before = spill->into_frames;
  const Range range = reading(region, stray);
  ASSERT_TRUE(acquire(*user, range));
  EXPECT_EQ(spill->into_frames, before + 1);
  fill(*user, range, 0xee);
  release(*user, range);
  finish_work(*user);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      if (i != stray) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
    }
  }
  expect_bytes(*user, region, stray, 0xee);
}

// A disk read must not wait for a store, so the frame of a page being stored is no target.
TEST_F(Arrive, AFrameThatACopyStillReadsIsWaitedFor) {
  start_straight();
  Region& region = map_file(4);
  Region& full = allocate(4);
  for (std::uint32_t i = 0; i < 4; ++i) write_to_the_end(*user, writing(full, i), 0x70);
  tier->hold_back(Direction::store);
  evict({&full, 0, 4});
  const auto waiting = begin(*user, reading(region, 0));
  steps();
  EXPECT_EQ(files->into_frames, 0u);
  EXPECT_FALSE(waiting->done());
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  EXPECT_EQ(files->into_frames, 1u);
  release(*user, waiting->range);
  finish_work(*user);
  for (std::uint32_t i = 0; i < 4; ++i) expect_bytes(*user, full, i, 0x70);
}

TEST_F(Arrive, WithEveryFrameHeldAPageComesThroughHostMemoryAndIsServedInPlace) {
  start_straight();
  Region& held = allocate(4);
  Region& region = map_file(4);
  const Range all_frames = writing(held, 0, 4);
  ASSERT_TRUE(acquire(*user, all_frames));
  Actor& other = actor();
  const auto waiting = begin(other, reading(region, 3));
  while (!waiting->done()) {
    steps();
    now_us += acquire_wait_us;
  }
  ASSERT_TRUE(complete(*waiting));
  EXPECT_TRUE(in_place(region, 3));
  EXPECT_EQ(files->into_frames, 0u);
  release(other, waiting->range);
  release(*user, all_frames);
  finish_work(other);
}

TEST_F(Arrive, ARegionFreedWhileAPageIsOnItsWayEndsAfterItAndGivesTheFrameBack) {
  start_straight();
  Region& region = map_file(4);
  files->hold_back();
  prefetch(reading(region, 0, 2));
  steps();
  EXPECT_EQ(files->into_frames, 2u);
  ASSERT_TRUE(free(region));
  steps();
  EXPECT_EQ(region.state.load(), RegionState::ending);
  check();
  files->let_go();
  EXPECT_TRUE(step_until([&] { return region.state.load() == RegionState::empty; }));
  check();
  Region& all = allocate(4);
  const Range range = writing(all, 0, 4);
  ASSERT_TRUE(acquire(*user, range));
  for (std::uint32_t i = 0; i < 4; ++i) EXPECT_TRUE(in_hbm(all, i));
  release(*user, range);
}

TEST_F(Arrive, WhatIsWrittenAnewWhileItIsOnItsWayIsNotOverwritten) {
  start_straight();
  Region& region = known();
  const std::uint32_t anew = first_known_below(region);
  const std::uint64_t before = spill->into_frames;
  for (std::uint32_t i = 0; i < kPages; ++i) evict_to_the_end({&region, i});
  spill->hold_back(Direction::load);
  prefetch(reading(region, anew));
  steps();
  EXPECT_EQ(spill->into_frames, before + 1);
  const Range range = discarding(region, anew, 1);
  ASSERT_TRUE(acquire(*user, range));
  fill(*user, range, 0x99);
  release(*user, range);
  spill->let_go();
  settle();
  check();
  expect_bytes(*user, region, anew, 0x99);
}

TEST_F(Arrive, HostReadsWaitForAPageThatIsOnItsWay) {
  start_straight();
  Region& region = map_file(4);
  files->hold_back();
  prefetch(reading(region, 2));
  steps();
  EXPECT_EQ(files->into_frames, 1u);
  files->let_go();
  expect_stored(region, 2, 2);
  EXPECT_EQ(files->loads, 1u) << "from the frame";
}

// Too few frames or slots, or no GPU progress.
class ArriveUnderPressure : public Arrive {
 protected:
  void start_straight(const MachineShape& wanted) {
    start(wanted);
    user = &actor();
  }
  // Whether the acquire ends within `waits` acquire timeouts while the GPU makes no progress.
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
};

const MachineShape kShape{.hbm_pages = 4, .host_pages = 8, .spill_pages = 16, .files = true, .straight = true};

// A kernel fills the GPU and waits for what the program does after its acquire, so the kernel that
// verifies the loaded page cannot run.
TEST_F(ArriveUnderPressure, AnAcquireDoesNotWaitForEverForTheCheckOfWhatHasCome) {
  start_straight(kShape);
  Region& region = known();
  const std::uint32_t wanted = first_known_below(region);
  for (std::uint32_t i = 0; i < kPages; ++i) evict_to_the_end({&region, i});
  const std::uint64_t before = spill->into_frames;
  tier->hold_back(Direction::store);  // also holds the comparing kernels
  const auto waiting = begin(*user, reading(region, wanted));
  EXPECT_TRUE(ends_within(*waiting, 1000)) << "1000 times as long as an acquire waits";
  EXPECT_EQ(spill->into_frames, before + 1);
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
  finish_work(*user);
}

// Conditional stores run kernels, too. A kernel may not end before the acquire does, so waiting for
// the frame it reads could be endless.
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

// Loads into the frames are in flight, and their frames become free without help.
TEST_F(ArriveUnderPressure, HostMemoryThatIsFullIsNoReasonToFailWhileFramesAreReadInto) {
  start_straight({.hbm_pages = 4, .host_pages = 4, .files = true, .straight = true});
  Region& region = map_file(4);
  Region* mine = nullptr;
  for (std::uint32_t pages = 8; mine == nullptr && pages > 0; --pages) {
    if (auto got = try_allocate(pages)) mine = *got;
  }
  ASSERT_NE(mine, nullptr);
  // Fills host memory with all pages but the last; HBM stays empty.
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

// A prefetch larger than HBM: each loaded page is evicted for the next one before it is mapped.
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

// One free frame is still read by a store, the others are idle. The acquire must take an idle one.
TEST_F(ArriveUnderPressure, AFrameThatIsNotBusyIsTakenBeforeOneThatIs) {
  start_straight(kShape);
  Region& others = map_file(3);
  Region& region = map_file(1);
  Region& written = allocate(1);
  write_to_the_end(*user, writing(written, 0), 0x70);
  for (std::uint32_t i = 0; i < 3; ++i) expect_bytes(*user, others, i, static_cast<unsigned char>(i));
  tier->hold_back(Direction::store);
  evict({&written, 0});  // the oldest free frame, and busy
  evict({&others, 0, 3});
  const auto waiting = begin(*user, reading(region, 0));
  EXPECT_TRUE(ends_within(*waiting, 20)) << "three frames are free, and nothing uses them";
  tier->let_go(Direction::store);
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
  finish_work(*user);
}

// As without direct reads: an acquire does not wait while every frame is held, but is served in
// place at once.
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

// Of a range larger than HBM, all pages that go through host memory are loaded at once.
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

// A page being compared is mapped again without a load.
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
