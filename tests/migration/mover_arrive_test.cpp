// From files straight into frames, past host memory.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;
using tiers::Outcome;

// Four frames, eight slots; files of others, and room for sixteen pages below.
class Arrive : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 16;
  void start_straight(bool wanted = true, std::uint32_t hbm_pages = 4) {
    start({.hbm_pages = hbm_pages, .host_pages = 8, .spill_pages = 16, .files = true, .straight = wanted});
    user = &actor();
  }
  std::uint64_t slots() const { return tier->usage().used_bytes / kPageBytes; }
  // Sixteen pages with their index as value, of which the GPU knows what those below are like.
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
      if (only_below(region, i) && page(region, i).spilled->known) return i;
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
    const bool nobody_knows = only_below(region, i) && !page(region, i).spilled->known;
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
  EXPECT_TRUE(page(region, wrong).spilled->through_host);
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

// No disk waits for a copy: the frame of a page that is still being copied out is not read into.
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

}  // namespace
}  // namespace vmem::migration
