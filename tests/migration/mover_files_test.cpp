// Read-only regions: their pages are loaded from a file on use, and need neither host memory nor
// stores.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;
using tiers::Outcome;

// Four frames and eight slots.
class Files : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 16;
  void start_with_files(const MachineShape& wanted = {.hbm_pages = 4, .host_pages = 8, .files = true}) {
    start(wanted);
    user = &actor();
  }
  std::uint64_t host_bytes() const { return tier->usage().used_bytes; }
  Actor* user = nullptr;
};

TEST_F(Files, PagesAreReadWhenTheyAreUsedAndLeaveWithoutACopy) {
  start_with_files();
  Region& region = map_file(kPages);
  EXPECT_EQ(files->loads, 0u);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      expect_bytes(*user, region, i, static_cast<unsigned char>(i));
      settle();
      EXPECT_EQ(host_bytes(), 0u) << "its slot was given back";
      check();
    }
  }
  EXPECT_EQ(tier->submitted(Direction::store) + tier->checks(), 0u);
  EXPECT_EQ(inside->counters().migrated_out_bytes, 0u);
  EXPECT_GE(inside->counters().file_read_bytes, kPages * kPageBytes);
  EXPECT_EQ(inside->counters().committed_bytes, 0u);
}

TEST_F(Files, TheNextPagesOfARangeSetOutWhileTheFirstIsOnItsWay) {
  start_with_files({.hbm_pages = 8, .host_pages = 16, .files = true});
  Region& region = map_file(kPages);
  files->hold_back();
  const auto waiting = begin(*user, reading(region, 2, 6));
  steps();
  EXPECT_EQ(files->loads, 6u);
  EXPECT_FALSE(waiting->done());
  files->let_go();
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
}

TEST_F(Files, ThePolicyHearsThatTheirPagesAreDistant) {
  start_with_files();
  const Region& file = map_file(kPages);
  (void)allocate(2);  // moves between HBM and host memory only
  EXPECT_EQ(policy->distant, std::set{file.id});
}

TEST_F(Files, WritingIsRefusedAndReadsStayReadOnly) {
  start_with_files();
  Region& region = map_file(4);
  for (const Range& range : {writing(region, 1), discarding(region, 0, 4)}) {
    const Status refused = acquire(*user, range);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().status, VMEM_ERROR_INVALID_VALUE);
    EXPECT_NE(refused.error().message.find("scripted.bin"), std::string::npos) << refused.error().message;
  }
  EXPECT_EQ(files->loads, 0u);
  const Status written = cpu_write(region, 0, 1);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().status, VMEM_ERROR_INVALID_VALUE);
  expect_bytes(*user, region, 1, 1);
  EXPECT_FALSE(state(region, 1).allows(Access::write));
  unsigned long long flags = 0;
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {0}};
  ASSERT_EQ((*driver)->cuMemGetAccess(&flags, &location, space->address_of(region.granule_of(1))), CUDA_SUCCESS);
  EXPECT_EQ(flags, (unsigned long long)(CU_MEM_ACCESS_FLAGS_PROT_READ)) << "a stray write faults";
}

TEST_F(Files, WithoutAFrameAPageIsServedInPlaceAndGivesItsSlotUpLater) {
  start_with_files();
  Region& held = allocate(4);
  Region& region = map_file(kPages);
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
  EXPECT_FALSE(state(region, 3).allows(Access::write));
  release(other, waiting->range);
  release(*user, all_frames);
  finish_work(other);
  ASSERT_TRUE(free(held, user));
  finish_work(*user);
  steps();
  // The other region takes all slots.
  Region& more = allocate(7);
  for (std::uint32_t i = 0; i < 7; ++i) write_to_the_end(*user, writing(more, i), 9);
  expect_bytes(*user, region, 3, 3);
}

TEST_F(Files, WhatCannotBeReadIsLostWithItsReasonAndNothingElseIs) {
  start_with_files();
  Region& region = map_file(kPages);
  files->answer_next(Outcome::lost, "scripted.bin shrank");
  for (int round = 0; round < 2; ++round) {
    const Status acquired = acquire(*user, reading(region, 5));
    ASSERT_FALSE(acquired);
    EXPECT_EQ(acquired.error().status, VMEM_ERROR_LOST);
    EXPECT_NE(acquired.error().message.find("scripted.bin shrank"), std::string::npos) << acquired.error().message;
  }
  EXPECT_EQ(host_bytes(), 0u);
  for (std::uint32_t i = 0; i < kPages; ++i) {
    if (i != 5) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
}

TEST_F(Files, PrefetchKeepsTheDiskBusyAndBringsPagesToHbm) {
  start_with_files({.hbm_pages = 8, .host_pages = 16, .files = true});
  Region& region = map_file(kPages);
  files->hold_back();
  prefetch(reading(region, 0, 8));
  steps();
  EXPECT_EQ(files->loads, 8u) << "all at once";
  files->let_go();
  ASSERT_TRUE(step_until([&] {
    for (std::uint32_t i = 0; i < 8; ++i) {
      if (!in_hbm(region, i)) return false;
    }
    return true;
  }));
  settle();
  EXPECT_EQ(host_bytes(), 0u);
}

// A prefetch of more pages than there are frames and slots.
TEST_F(Files, WhatIsReadAheadDoesNotTakeEachOthersSlots) {
  start_with_files();
  Region& held = allocate(4);
  Region& region = map_file(kPages);
  const Range all_frames = writing(held, 0, 4);
  ASSERT_TRUE(acquire(*user, all_frames));
  prefetch(reading(region, 0, kPages));
  // The mover must come to rest although no frame becomes free.
  for (int i = 0; i < 1000; ++i) {
    if (mover->step() == Mover::Next::again) continue;
    std::this_thread::yield();
  }
  EXPECT_EQ(inside->in_flight(), 0u);
  EXPECT_LE(files->loads, 2 * kPages);
  release(*user, all_frames);
}

TEST_F(Files, AScanIsReadAheadOfItsUses) {
  start_with_files({.hbm_pages = 64, .host_pages = 128, .files = true, .real_policy = true});
  Region& region = map_file(60);
  std::uint64_t waited = 0;
  for (std::uint32_t i = 0; i < 60; ++i) {
    const auto under_way = begin(*user, reading(region, i));
    waited += under_way->hit ? 0 : 1;
    ASSERT_TRUE(complete(*under_way));
    release(*user, under_way->range);
    finish_work(*user);
    settle();
  }
  EXPECT_LE(waited, 6u) << "until the scan was recognised";
  EXPECT_EQ(files->loads, 60u);
}

TEST_F(Files, HostReadsDoNotReadThePageAgainAndAgain) {
  start_with_files();
  Region& region = map_file(4);
  for (int i = 0; i < 3; ++i) expect_stored(region, 2, 2);
  EXPECT_EQ(files->loads, 1u);
  expect_bytes(*user, region, 2, 2);
  settle();
  EXPECT_EQ(files->loads, 1u) << "from the slot";
  EXPECT_EQ(host_bytes(), 0u);
}

TEST_F(Files, ARegionFreedWhileAPageIsOnItsWayEndsAfterIt) {
  start_with_files();
  Region& region = map_file(4);
  files->hold_back();
  prefetch(reading(region, 0, 2));
  steps();
  ASSERT_TRUE(free(region));
  steps();
  EXPECT_EQ(region.state.load(), RegionState::ending);
  EXPECT_EQ(files->sources, 1u) << "its file is open";
  files->let_go();
  EXPECT_TRUE(step_until([&] { return region.state.load() == RegionState::empty; }));
  EXPECT_EQ(files->sources, 0u);
  EXPECT_EQ(host_bytes(), 0u);
}

TEST_F(Files, AllocationsLeaveHostMemoryForPagesToComeThrough) {
  start_with_files();
  Region& region = map_file(kPages);
  // As much as HBM and host memory hold, less the pages reserved for transit.
  Region& full = allocate(9);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 9; ++i)
      write_to_the_end(*user, writing(full, i), static_cast<unsigned char>(100 + i));
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  for (std::uint32_t i = 0; i < 9; ++i) expect_stored(full, i, static_cast<unsigned char>(100 + i));
}

}  // namespace
}  // namespace vmem::migration
