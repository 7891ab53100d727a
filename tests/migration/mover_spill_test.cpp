// Transfers between host memory and the tier below.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;
using tiers::Outcome;

// Four frames, eight slots and room for 16 pages below.
class Spill : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 16;
  void start_spilling(const MachineShape& wanted = {.hbm_pages = 4, .host_pages = 8, .spill_pages = 16}) {
    start(wanted);
    user = &actor();
  }
  // A region of 16 pages, each filled with its index. The last pages are in HBM, the others where
  // there was room.
  Region& filled() {
    Region& region = allocate(kPages);
    for (std::uint32_t i = 0; i < kPages; ++i)
      write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
    settle();
    return region;
  }
  std::uint32_t count_below(const Region& region) const {
    std::uint32_t count = 0;
    for (std::uint32_t i = 0; i < region.page_count; ++i) count += only_below(region, i);
    return count;
  }
  bool only_below(const Region& region, std::uint32_t i) const {
    return below(region, i) && !in_host(region, i) && page(region, i).frame == kNoFrame;
  }
  std::uint32_t first_below(const Region& region) const {
    for (std::uint32_t i = 0; i < region.page_count; ++i) {
      if (only_below(region, i)) return i;
    }
    ADD_FAILURE() << "no page is only below";
    return 0;
  }
  // Number of loads in flight while ten pages of 16 MiB are prefetched.
  std::uint64_t loads_under_way(std::uint32_t busy_pages, std::uint32_t host_pages) {
    start_spilling({.hbm_pages = 96, .host_pages = host_pages, .spill_pages = 224, .page_bytes = 8 * kPageBytes});
    spill->needs(busy_pages);
    Region& region = allocate(96 + host_pages + 8 * 12);
    for (std::uint32_t i = 0; i < region.page_count; ++i) write_to_the_end(*user, writing(region, i), 1);
    settle();
    const std::uint32_t first = first_below(region);
    EXPECT_TRUE(only_below(region, first + 9));
    spill->hold_back(Direction::load);
    const std::uint64_t before = spill->submitted(Direction::load);
    prefetch(reading(region, first, 10));
    steps();
    const std::uint64_t under_way = spill->submitted(Direction::load) - before;
    spill->let_go();
    EXPECT_TRUE(step_until([&] { return in_hbm(region, first + 9); }));
    return under_way;
  }
  Actor* user = nullptr;
};

// A page used in place but never written has no bytes to spill.
TEST_F(Spill, PagesInPlaceThatWereNeverWrittenMakeRoom) {
  start_spilling({.hbm_pages = 4, .host_pages = 8, .spill_pages = 16, .protect = true});
  Region& region = allocate(12);
  for (std::uint32_t i = 0; i < 12; ++i) write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
  settle();
  Region& empty = allocate(8);
  ASSERT_TRUE(advise({&empty, 0, 8}, VMEM_ADVISE_IN_PLACE));
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(acquire(*user, reading(empty, i))) << i;
    release(*user, reading(empty, i));
  }
  finish_work(*user);
  std::uint32_t in_place = 0;
  for (std::uint32_t i = 0; i < 8; ++i) in_place += in_host(empty, i) || page(empty, i).slot != kNoFrame ? 1 : 0;
  EXPECT_EQ(in_place, 8u) << "all of host memory, or this shows nothing";
  for (std::uint32_t i = 0; i < 12; ++i) expect_stored(region, i, static_cast<unsigned char>(i));
}

TEST_F(Spill, ThePolicyHearsThatPagesMayBeDistant) {
  start_spilling();
  const Region& region = allocate(2);
  EXPECT_EQ(policy->distant, std::set{region.id});
}

TEST_F(Spill, PagesThatHostMemoryHasNoRoomForGoBelowAndComeBack) {
  start_spilling();
  Region& region = filled();
  EXPECT_GE(count_below(region), kPages - 4 - 8);
  for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  for (std::uint32_t i = kPages; i > 0; --i) expect_stored(region, i - 1, static_cast<unsigned char>(i - 1));
}

TEST_F(Spill, MoreThanAllTiersHoldIsRefusedWithEachTiersFigures) {
  start_spilling();
  const auto refused = try_allocate(40);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(refused.error().message.find("and scripted (32 MiB), which can hold 44 MiB of 48 MiB"), std::string::npos)
      << refused.error().message;
}

TEST_F(Spill, WhatIsReadAgainAndAgainIsWrittenBelowOnce) {
  start_spilling({.hbm_pages = 4, .host_pages = 8, .spill_pages = 16, .protect = true});
  Region& region = filled();
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  settle();
  const std::uint64_t before = spill->submitted(Direction::store);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  EXPECT_LE(spill->submitted(Direction::store), before + 4) << "those that were never below";
  EXPECT_LE(before, kPages);
}

// Without protection, work that acquired a page for reading can write it. Its copy below is
// compared before it is used.
TEST_F(Spill, AStrayWriteToAPageWithACopyBelowIsKept) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t stray = first_below(region);
  const Range range = reading(region, stray);
  ASSERT_TRUE(acquire(*user, range));
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

// The fingerprint that an earlier load computed identifies the copy below. The page then leaves HBM
// without a slot or a store, and no checksums are compared.
TEST_F(Spill, APageThatIsAsItsCopyBelowLeavesHbmWithoutASlot) {
  start_spilling();
  Region& region = filled();
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  settle();
  const std::uint64_t stored = tier->submitted(Direction::store), spilled = spill->submitted(Direction::store);
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  settle();
  EXPECT_LE(tier->submitted(Direction::store), stored + 2 * kPages) << "of those that were not loaded with a slot yet";
  const std::uint64_t settled = tier->submitted(Direction::store), compared = tier->checks();
  for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  settle();
  EXPECT_LE(tier->submitted(Direction::store), settled + kPages / 4)
      << "only what comes from host memory the first time";
  EXPECT_GT(tier->checks(), compared);
  EXPECT_LE(spill->submitted(Direction::store), spilled + 2 * kPages);
  EXPECT_EQ(inside->counters().stray_writes, 0u);
}

TEST_F(Spill, AStrayWriteToAPageWhoseCopyBelowIsKnownIsKept) {
  start_spilling();
  Region& region = filled();
  for (int round = 0; round < 4; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  const std::uint32_t stray = first_below(region);
  const Range range = reading(region, stray);
  for (unsigned char value = 0xe0; value < 0xe3; ++value) {
    ASSERT_TRUE(acquire(*user, range));
    fill(*user, range, value);
    release(*user, range);
    finish_work(*user);
    for (int round = 0; round < 3; ++round) {
      for (std::uint32_t i = 0; i < kPages; ++i) {
        if (i != stray) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
      }
    }
    expect_bytes(*user, region, stray, value);
  }
}

// A page being compared keeps its slot until the comparison ends. An acquire that needs the slot
// waits.
TEST_F(Spill, SlotsOfPagesThatAreComparedAreWaitedFor) {
  start_spilling({.hbm_pages = 4, .host_pages = 2, .spill_pages = 16});
  Region& region = filled();
  for (int round = 0; round < 4; ++round) {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  settle();
  std::vector<std::uint32_t> compared;
  for (std::uint32_t i = 0; i < kPages; ++i) {
    if (in_hbm(region, i) && page(region, i).slot != kNoFrame) compared.push_back(i);
  }
  ASSERT_EQ(compared.size(), 2u);
  tier->hold_back(Direction::store);
  for (const std::uint32_t i : compared) {
    evict({&region, i});
    EXPECT_TRUE(page(region, i).mapped == Mapped::nothing && !page(region, i).standby()) << i;
  }
  const auto wanted = begin(*user, reading(region, first_below(region)));
  steps();
  EXPECT_FALSE(wanted->done()) << "it can have a slot when the comparisons have ended";
  tier->let_go(Direction::store);
  EXPECT_TRUE(complete(*wanted));
  release(*user, wanted->range);
  finish_work(*user);
}

// A load yields a fingerprint only when it ends. (A load whose mapping failed goes on beside the
// page's next load.)
TEST_F(Spill, WhatALoadLearnsIsKnownWhenItHasEnded) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t first = first_below(region);
  tier->hold_back(Direction::load);
  const Range range = reading(region, first);
  ASSERT_TRUE(acquire(*user, range));
  EXPECT_FALSE(tier->fingerprint(page(region, first).slot));
  EXPECT_FALSE(page(region, first).spilled->fingerprint.has_value());
  tier->let_go(Direction::load);
  release(*user, range);
  finish_work(*user);
  settle();
  EXPECT_TRUE(page(region, first).spilled->fingerprint.has_value());
}

// The slot for the page is that of another dead page. Reading that page's uses tells the mover that
// this page died as well.
TEST_F(Spill, APageThatDiesWhileASlotIsFoundForItIsNotRecalled) {
  start_spilling({.hbm_pages = 4, .host_pages = 4, .spill_pages = 16});
  Region& region = allocate(8);
  for (std::uint32_t i = 0; i < 8; ++i) write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
  Region& used_in_place = allocate(4);
  ASSERT_TRUE(advise({&used_in_place, 0, 4}, VMEM_ADVISE_IN_PLACE));
  for (std::uint32_t i = 0; i < 4; ++i) write_to_the_end(*user, writing(used_in_place, i), 0x50);
  settle();
  for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(in_place(used_in_place, i));
  const auto dies = [&](Region& dead) {
    dead.life.fetch_add(1);
    const Span all(dead.first, dead.granules, Access::none);
    (void)user->slot->log.append({all, {}, pagetable::LoggedUse::Kind::changed});
  };
  dies(used_in_place);
  steps();
  const std::uint32_t first = first_below(region);
  const std::uint64_t recalled = spill->submitted(Direction::load);
  tier->on_allocate = [&] { dies(region); };
  prefetch(reading(region, first));
  settle();
  EXPECT_EQ(page(region, first).version, 0u);
  EXPECT_EQ(spill->submitted(Direction::load), recalled);
}

TEST_F(Spill, TheNextPagesOfARangeSetOutWhileTheFirstIsOnItsWay) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t first = first_below(region);
  ASSERT_TRUE(only_below(region, first + 1) && only_below(region, first + 2));
  spill->hold_back(Direction::load);
  const std::uint64_t before = spill->submitted(Direction::load);
  const auto waiting = begin(*user, reading(region, first, 3));
  steps();
  EXPECT_EQ(spill->submitted(Direction::load), before + 3);
  EXPECT_FALSE(waiting->done());
  spill->let_go();
  ASSERT_TRUE(complete(*waiting));
  release(*user, waiting->range);
}

TEST_F(Spill, LoadsOf64MiBAreUnderWay) { EXPECT_EQ(loads_under_way(2, 200), 4u); }
TEST_F(Spill, MoreAreUnderWayWhereTheTierNeedsMore) { EXPECT_EQ(loads_under_way(6, 200), 6u); }
TEST_F(Spill, ButNotWhereTheyAreALargePartOfHostMemory) { EXPECT_EQ(loads_under_way(6, 96), 4u); }

TEST_F(Spill, PrefetchBringsPagesFromBelowIntoHbm) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t first = first_below(region);
  prefetch(reading(region, first, 2));
  ASSERT_TRUE(step_until([&] { return in_hbm(region, first) && in_hbm(region, first + 1); }));
  expect_bytes(*user, region, first, static_cast<unsigned char>(first));
}

TEST_F(Spill, AFailedWriteLeavesThePageInHostMemory) {
  start_spilling();
  for (int i = 0; i < 3; ++i) spill->answer_next(Direction::store, Outcome::failed);
  Region& region = allocate(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) {
    const auto waiting = begin(*user, writing(region, i));
    for (int waited = 0; waited < 1'000 && !waiting->done(); ++waited) {
      steps(2);
      now_us += 1'000;
    }
    ASSERT_TRUE(complete(*waiting));
    fill(*user, waiting->range, static_cast<unsigned char>(i));
    release(*user, waiting->range);
    finish_work(*user);
  }
  EXPECT_GE(inside->counters().spill_failures, 3u);
  for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
}

// A disk that fills up early loses nothing: pages without a place below stay put, and acquires that
// need more room fail.
TEST_F(Spill, ADiskThatIsFullBeforeItsBudgetLosesNothing) {
  start_spilling();
  spill->full = true;
  Region& region = allocate(kPages);
  std::uint32_t written = 0;
  for (; written < kPages; ++written) {
    const auto under_way = begin(*user, writing(region, written));
    while (!under_way->done()) {
      steps();
      now_us += acquire_wait_us;
    }
    if (auto served = complete(*under_way); !served) {
      EXPECT_EQ(served.error().status, VMEM_ERROR_OUT_OF_MEMORY) << served.error().message;
      break;
    }
    fill(*user, under_way->range, static_cast<unsigned char>(written));
    release(*user, under_way->range);
    finish_work(*user);
  }
  EXPECT_GE(written, 11u);
  EXPECT_LT(written, kPages);
  for (std::uint32_t i = 0; i < written; ++i) expect_stored(region, i, static_cast<unsigned char>(i));
}

// No call waits longer than five seconds for a dead disk, and no store is retried right after a
// failure.
class SpillToADeadDisk : public Spill, public testing::WithParamInterface<bool> {
 protected:
  // Writes pages until a write is refused. Returns the number of pages written.
  std::uint32_t write_until_refused(Region& region, std::uint32_t first) {
    for (std::uint32_t i = first; i < kPages; ++i) {
      const auto waiting = begin(*user, writing(region, i));
      const std::uint64_t began_us = now_us;
      while (!waiting->done() && now_us - began_us < 10'000'000) {
        steps(2);
        now_us += 1'000;
      }
      waited_us = now_us - began_us;
      const bool served = waiting->done();
      EXPECT_TRUE(served) << "hangs";
      if (!served) return i;
      if (auto completed = complete(*waiting); !completed) {
        refused = completed.error();
        return i;
      }
      fill(*user, waiting->range, static_cast<unsigned char>(i));
      release(*user, waiting->range);
      finish_work(*user);
    }
    return kPages;
  }
  std::uint64_t waited_us = 0;  // by the last write
  std::optional<Error> refused;
};

TEST_P(SpillToADeadDisk, CallsEndInTimeWithTheDisksErrorAndPagesStayReadable) {
  start_spilling();
  (GetParam() ? spill->out_of_service : spill->stores_fail) = true;
  Region& region = allocate(kPages);
  const std::uint32_t written = write_until_refused(region, 0);
  EXPECT_GE(written, 11u);
  ASSERT_LT(written, kPages);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(refused->message.find("the scripted disk is dead"), std::string::npos) << refused->message;
  EXPECT_LE(waited_us, 6'000'000u);
  EXPECT_LE(spill->submitted(Direction::store), 100u) << "with growing pauses";
  EXPECT_LE(spill->usage().used_bytes, kPageBytes) << "slots that failed are given back";
  for (std::uint32_t i = 0; i < written; ++i) expect_stored(region, i, static_cast<unsigned char>(i));
  spill->out_of_service = spill->stores_fail = false;
  now_us += 1'000'000;
  EXPECT_EQ(write_until_refused(region, written), kPages) << "it works again";
  for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
}

INSTANTIATE_TEST_SUITE_P(Ways, SpillToADeadDisk, testing::Bool(),
                         [](const auto& way) { return way.param ? "SlotsAreRefused" : "StoresFail"; });

TEST_F(Spill, APageThatCannotBeReadBackIsLostAndNoOther) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t bad = first_below(region);
  spill->answer_next(Direction::load, Outcome::lost, VMEM_ERROR_LOST);
  const Status acquired = acquire(*user, reading(region, bad));
  ASSERT_FALSE(acquired);
  EXPECT_EQ(acquired.error().status, VMEM_ERROR_LOST) << acquired.error().message;
  for (std::uint32_t i = 0; i < kPages; ++i) {
    if (i != bad) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  EXPECT_FALSE(acquire(*user, reading(region, bad))) << "and stays lost";
}

TEST_F(Spill, ARegionFreedWhileAPageIsOnItsWayEndsAfterIt) {
  start_spilling();
  Region& region = filled();
  spill->hold_back(Direction::load);
  prefetch(reading(region, first_below(region)));
  steps();
  ASSERT_TRUE(free(region));
  steps();
  EXPECT_EQ(region.state.load(), RegionState::ending);
  spill->let_go();
  EXPECT_TRUE(step_until([&] { return region.state.load() == RegionState::empty; }));
  EXPECT_EQ(spill->usage().used_bytes, 0u);
}

TEST_F(Spill, WhatIsWrittenWithoutBeingReadIsNotReadBack) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t first = first_below(region);
  const std::uint64_t before = spill->submitted(Direction::load);
  write(*user, discarding(region, first), 0x77);
  EXPECT_EQ(spill->submitted(Direction::load), before);
  expect_bytes(*user, region, first, 0x77);
}

TEST_F(Spill, HostWritesToAPageBelowKeepItsOtherBytes) {
  start_spilling();
  Region& region = filled();
  const std::uint32_t first = first_below(region);
  OpenPageRequest open;
  open.run = {&region, first, 1};
  open.write = true;
  ASSERT_TRUE(ask(open));
  ASSERT_NE(open.host, nullptr);
  EXPECT_EQ(open.host[kPageBytes - 1], std::byte(first)) << "read back before";
  open.host[0] = std::byte{0x55};
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
  for (std::uint32_t i = 0; i < kPages; ++i) {
    if (i != first) expect_bytes(*user, region, i, static_cast<unsigned char>(i));
  }
  OpenPageRequest again;
  again.run = {&region, first, 1};
  ASSERT_TRUE(ask(again));
  const auto* bytes = again.host != nullptr ? again.host : reinterpret_cast<const std::byte*>(again.device_window);
  EXPECT_EQ(bytes[0], std::byte{0x55});
  EXPECT_EQ(bytes[1], std::byte(first));
  ClosePageRequest close_again;
  close_again.run = again.run;
  ASSERT_TRUE(ask(close_again));
}

// All of HBM and host memory is held, so no slot is free for a recall, and no tier has failed.
TEST_F(Spill, AnAcquireForWhichEverythingIsInUseFailsAfterItsTime) {
  start_spilling();
  Region& region = filled();
  const auto all_else = begin(*user, reading(region, 0, 11));
  ASSERT_TRUE(complete(*all_else));
  Actor& other = actor();
  const auto waiting = begin(other, reading(region, 11, 5));
  for (int i = 0; i < 100 && !waiting->done(); ++i) {
    steps();
    now_us += acquire_wait_us;
  }
  ASSERT_TRUE(waiting->done());
  const Status served = complete(*waiting);
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().status, VMEM_ERROR_OUT_OF_MEMORY) << served.error().message;
  release(*user, all_else->range);
  finish_work(*user);
  expect_bytes(other, region, 15, 15);
}

// Likewise, however many more of the wanted pages are only below.
TEST_F(Spill, AnAcquireOfSeveralPagesForWhichEverythingIsInUseFailsAfterItsTime) {
  start_spilling();
  Region& region = filled();
  const auto all_else = begin(*user, reading(region, 0, 11));
  ASSERT_TRUE(complete(*all_else));
  auto running = gate(*user);
  release(*user, all_else->range);
  Actor& other = actor();
  std::uint32_t first = 11;
  while (!only_below(region, first)) ++first;
  const auto waiting = begin(other, reading(region, first, 3));
  for (int waited = 0; waited < 100 && !waiting->done(); ++waited) {
    steps();
    now_us += acquire_wait_us;
  }
  ASSERT_TRUE(waiting->done());
  const Status served = complete(*waiting);
  ASSERT_FALSE(served);
  EXPECT_EQ(served.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  running.open();
}

}  // namespace
}  // namespace vmem::migration
