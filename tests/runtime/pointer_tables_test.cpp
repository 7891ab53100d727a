// What launches may reach through pointer tables.
#include "runtime/launch/tables/pointer_tables.hpp"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace vmem::runtime {
namespace {

using Addresses = std::set<std::uintptr_t>;
using Look = std::shared_ptr<PointerTables::Look>;

struct Tables : ::testing::Test {
  std::unique_ptr<PointerTables> tables = std::make_unique<PointerTables>();
  std::uint32_t window = 64;

  Addresses launch(bool fills, const Addresses& small, const Addresses& large) {
    Addresses reached;
    std::vector<std::uintptr_t> named(small.begin(), small.end());
    named.insert(named.end(), large.begin(), large.end());
    tables->begin(window, named);
    for (const std::uintptr_t base : small) tables->name_small(base, base);
    tables->finish(fills, [&](std::uintptr_t target) {
      if (!small.contains(target) && !large.contains(target)) reached.insert(target);
    });
    return reached;
  }
  // A finished inspection of the table after a launch.
  void look(std::uintptr_t table, const std::vector<std::uintptr_t>& holds, bool whole = true) {
    tables->begin(window, {});
    settle(table, begin_look(table), holds, whole);
  }
  Look begin_look(std::uintptr_t table, std::span<const std::uintptr_t> doubts = {}) {
    auto look = tables->begin_look({doubts.begin(), doubts.end()});
    tables->note(table, look);
    return look;
  }
  void settle(std::uintptr_t table, const Look& look, std::span<const std::uintptr_t> holds, bool whole = true) {
    tables->settle(table, *look, holds, 64, whole);
  }
  // Leaves no record.
  Addresses known_targets(std::uintptr_t table) { return launch(false, {}, {table}); }
};

TEST_F(Tables, ASmallTableIsKnownByItsBaseHoweverItIsNamed) {
  look(0x100, {100});
  Addresses reached;
  const std::uintptr_t inside[] = {0x108};
  tables->begin(window, inside);
  tables->name_small(0x108, 0x100);
  tables->finish(false, [&](std::uintptr_t target) { reached.insert(target); });
  EXPECT_EQ(reached, Addresses{100});
}

// Launches that can skip the tables.
TEST_F(Tables, LaunchesThatNameNothingNearATableAreNoConcern) {
  constexpr std::uintptr_t kTable = 0x7d0000000000;
  const auto concerns = [&](std::uintptr_t address) {
    return tables->may_matter(window, std::span<const std::uintptr_t>(&address, 1));
  };
  EXPECT_FALSE(tables->may_matter(window, std::nullopt));
  look(kTable, {100});
  EXPECT_TRUE(tables->may_matter(window, std::nullopt)) << "it may name anything";
  for (const std::uintptr_t near : {kTable - PointerTables::kAround + 1, kTable, kTable + PointerTables::kAround - 1,
                                    kTable + PointerTables::kSmallMax - 1})
    EXPECT_TRUE(concerns(near)) << near - kTable;
  for (const std::uintptr_t far : {kTable - 2 * PointerTables::kSmallMax, kTable + 2 * PointerTables::kSmallMax})
    EXPECT_FALSE(concerns(far)) << far - kTable;
  tables->forget_tables(kTable, 64);
  EXPECT_FALSE(concerns(kTable));
  EXPECT_FALSE(tables->may_matter(window, std::nullopt));
  launch(true, {1, 2}, {});
  EXPECT_TRUE(concerns(kTable)) << "what was filled may be named";
  window = 0;
  EXPECT_FALSE(concerns(kTable));
}

TEST_F(Tables, ATableLeadsToWhatItWasFilledWith) {
  EXPECT_EQ(launch(true, {1}, {100, 200}), Addresses{});
  EXPECT_EQ(launch(false, {1}, {}), (Addresses{100, 200}));
  EXPECT_EQ(launch(false, {2}, {}), Addresses{});
}

TEST_F(Tables, WhatDoesNotFillTablesMakesNone) {
  launch(false, {1}, {100});
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, ATableMadeFromATableIsOne) {
  launch(true, {1}, {100});
  launch(false, {1, 2}, {});
  EXPECT_EQ(launch(false, {2}, {}), (Addresses{1, 100}));
}

TEST_F(Tables, TablesLeadToSmallAllocationsToo) {
  launch(true, {1, 2}, {});
  EXPECT_EQ(launch(false, {1}, {}), Addresses{2});
}

TEST_F(Tables, AKnownTableIsKnownForAsLongAsItLives) {
  look(1, {2, 100});
  for (std::uint32_t i = 0; i < 3 * window; ++i) launch(false, {7}, {700});
  EXPECT_EQ(launch(false, {1}, {}), (Addresses{2, 100}));
  tables->forget_tables(1, 1);
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, ATableInALargeAllocationLiesAroundWhatIsNamed) {
  constexpr std::uintptr_t kTable = 1 << 20, kAround = PointerTables::kAround;
  look(kTable, {100});
  for (const std::uintptr_t near : {kTable, kTable - kAround + 8, kTable + 8, kTable + kAround})
    EXPECT_EQ(launch(false, {}, {near}), Addresses{100}) << near;
  for (const std::uintptr_t far : {kTable - kAround, kTable + kAround + 8})
    EXPECT_EQ(launch(false, {}, {far}), Addresses{}) << far;
  tables->forget_tables(kTable - 8, 512);
  EXPECT_EQ(launch(false, {}, {kTable}), Addresses{});
}

// However many small allocations are in use, each keeps its own targets.
TEST_F(Tables, TablesThatAreNamedByTurnsAreKeptApart) {
  for (std::uintptr_t each = 1; each <= 60; ++each) launch(true, {each << 9}, {each});
  for (std::uintptr_t each = 1; each <= 3; ++each) EXPECT_EQ(launch(false, {each << 9}, {}), Addresses{each});
}

TEST_F(Tables, WhatAKnownTableWasNamedWithLeadsThereForAWindow) {
  look(1, {100});
  launch(false, {1, 2}, {});
  for (std::uint32_t i = 0; i < window; ++i) EXPECT_EQ(launch(false, {2}, {}), Addresses{100}) << i;
  EXPECT_EQ(launch(false, {2}, {}), Addresses{});
}

TEST_F(Tables, WhatIsSeenTakesThePlaceOfWhatWas) {
  look(1, {100, 200});
  look(1, {100, 200});
  look(1, {100});
  EXPECT_EQ(known_targets(1), Addresses{100});
  look(1, {300});
  EXPECT_EQ(known_targets(1), Addresses{300});
}

TEST_F(Tables, WhatHoldsNothingAnyMoreIsNoTable) {
  look(1, {100});
  look(1, {});
  EXPECT_EQ(known_targets(1), Addresses{});
}

TEST_F(Tables, WhatIsSeenOfAPartAddsToTheRest) {
  look(1, {100}, false);
  look(1, {200}, false);
  look(1, {200}, false);
  EXPECT_EQ(known_targets(1), (Addresses{100, 200}));
}

TEST_F(Tables, WhereALookDidNotReachTheDoubtsRemain) {
  const std::uintptr_t named[] = {1, 200, 300}, seen[] = {100};
  tables->begin(window, {});
  settle(1, begin_look(1, named), seen, false);
  EXPECT_EQ(known_targets(1), (Addresses{100, 200, 300}));
}

TEST_F(Tables, LooksDoNotShortenTheWindow) {
  launch(true, {1}, {100});
  for (int i = 0; i < 200; ++i) settle(7, begin_look(7), {});
  EXPECT_EQ(launch(false, {1}, {}), Addresses{100});
}

TEST_F(Tables, UntilTheLookIsDoneATableMayLeadToAllThatWasNamedWithIt) {
  look(1, {100});
  const std::uintptr_t named[] = {1, 200, 300};
  tables->begin(window, {});
  const Look under_way = begin_look(1, named);
  EXPECT_EQ(known_targets(1), (Addresses{100, 200, 300}));
}

TEST_F(Tables, TheFirstOfTwoLooksLeavesTheSecondItsDoubts) {
  const std::uintptr_t named[] = {1, 200, 300}, seen[] = {200};
  tables->begin(window, {});
  const Look first = begin_look(1, named);
  const Look under_way = begin_look(1, named);
  settle(1, first, seen, true);
  EXPECT_EQ(known_targets(1), (Addresses{200, 300}));
}

TEST_F(Tables, TwoLooksThatSeeTheSame) {
  const std::uintptr_t named[] = {1, 200, 300}, seen[] = {200};
  tables->begin(window, {});
  const Look first = begin_look(1, named), second = begin_look(1, named);
  settle(1, first, seen, true);
  settle(1, second, seen, true);
  EXPECT_EQ(known_targets(1), Addresses{200});
}

TEST_F(Tables, LooksMayEndInAnyOrder) {
  look(1, {100});
  const std::uintptr_t named[] = {1, 200, 300}, seen_first[] = {100, 200}, seen_second[] = {200};
  tables->begin(window, {});
  const Look first = begin_look(1, named), second = begin_look(1, named);
  settle(1, second, seen_second, true);
  EXPECT_EQ(known_targets(1), (Addresses{200, 300})) << "the first may still find it written";
  settle(1, first, seen_first, true);
  EXPECT_EQ(known_targets(1), Addresses{200});
}

TEST_F(Tables, WhatIsBelievedIsKnownUntilALookThatBeginsLater) {
  const std::uintptr_t believed[] = {100, 200};
  tables->begin(window, {});
  const Look before = begin_look(1);
  tables->believe(1, believed);
  settle(1, before, {}, true);
  EXPECT_EQ(known_targets(1), (Addresses{100, 200}));
  look(1, {});
  EXPECT_EQ(known_targets(1), Addresses{});
}

// A launch that names many tables reaches a common target once, not once per table or per look.
TEST_F(Tables, WhatManySayIsReachedOnce) {
  std::vector<std::uintptr_t> named;
  for (std::uintptr_t each = 1; each <= 100; ++each) named.push_back(each);
  tables->begin(window, {});
  const Look look = tables->begin_look(named);
  for (const std::uintptr_t table : named) tables->note(table, look);
  for (int i = 0; i < 100; ++i) tables->believe(1, named);
  std::size_t reached = 0;
  tables->begin(window, named);
  tables->finish(false, [&](std::uintptr_t) { ++reached; });
  EXPECT_EQ(reached, named.size());
}

TEST_F(Tables, ALookAtATableFreedMeanwhileSaysNothing) {
  tables->begin(window, {});
  const std::uintptr_t named[] = {100};
  for (const bool there_is_another : {false, true}) {
    const Look freed = begin_look(1, named);
    tables->forget_tables(1, 1);
    const Look another = there_is_another ? begin_look(1) : nullptr;
    settle(1, freed, named);
    EXPECT_EQ(known_targets(1), Addresses{});
    EXPECT_FALSE(tables->drop(1, *freed));
  }
}

TEST_F(Tables, DoubtsEndWhereNothingWasWritten) {
  look(1, {100});
  const std::uintptr_t named[] = {1, 200};
  const Look doubts = begin_look(1, named);
  EXPECT_TRUE(tables->drop(1, *doubts));
  EXPECT_EQ(known_targets(1), Addresses{100});
}

TEST_F(Tables, WhatTheCpuWritesTakesThePlaceOfATableThatIsNotLonger) {
  const std::uintptr_t first[] = {100, 200}, second[] = {300};
  tables->begin(window, {});
  tables->write(1, first, 16);
  tables->write(1, second, 8);
  EXPECT_EQ(known_targets(1), (Addresses{100, 200, 300})) << "the second entry is still there";
  tables->write(1, second, 16);
  EXPECT_EQ(known_targets(1), Addresses{300});
  tables->write(1, {}, 16);
  EXPECT_EQ(known_targets(1), Addresses{});
}

TEST_F(Tables, CopiesOfTablesAreTables) {
  constexpr std::uintptr_t kSmall = 1 << 20, kFrom = 2 << 20, kTo = 3 << 20;
  const std::uintptr_t doubts[] = {200};
  look(kFrom + 64, {100});
  const Look under_way = begin_look(kFrom + 64, doubts);
  tables->copy({kTo, false}, {kFrom, false}, 64);
  EXPECT_EQ(known_targets(kTo), Addresses{}) << "it ends before the table";
  tables->copy({kTo, false}, {kFrom, false}, 128);
  EXPECT_EQ(known_targets(kTo + 64), (Addresses{100, 200}));
  tables->copy({kSmall, true}, {kTo + 32, false}, 64);
  EXPECT_EQ(known_targets(kSmall), (Addresses{100, 200}));
  look(kSmall, {300});
  tables->copy({kTo, false}, {kSmall, true}, 8);
  EXPECT_EQ(known_targets(kTo), (Addresses{100, 200, 300}));
}

// Tables under inspection do not displace known tables.
TEST_F(Tables, LooksUnderWayTakeNoRoomFromWhatIsKnown) {
  look(1, {100});
  std::vector<Look> looks;
  for (std::uintptr_t table = 1; table <= 2000; ++table) looks.push_back(begin_look(table << 20));
  for (std::uintptr_t table = 1; table <= 2000; ++table) settle(table << 20, looks[table - 1], {});
  EXPECT_EQ(known_targets(1), Addresses{100});
}

TEST_F(Tables, TheKnownTableThatWasNotUsedForLongestMakesRoom) {
  const auto nth = [](std::uintptr_t i) { return (i + 1) << 20; };
  for (std::uintptr_t i = 0; i < 1024; ++i) look(nth(i), {100});
  launch(false, {nth(0)}, {});
  look(1, {100});
  EXPECT_EQ(known_targets(nth(1)), Addresses{});
  EXPECT_EQ(known_targets(nth(0)), Addresses{100});
  EXPECT_EQ(known_targets(1), Addresses{100});
}

TEST_F(Tables, FillingAgainAddsToWhatWasThere) {
  launch(true, {1}, {100});
  launch(true, {1}, {200});
  EXPECT_EQ(launch(false, {1}, {}), (Addresses{100, 200}));
}

TEST_F(Tables, TargetsAreForgottenAfterTheWindowHoweverOftenTheTableIsUsed) {
  launch(true, {1}, {100});
  for (std::uint32_t i = 0; i < window; ++i) EXPECT_EQ(launch(false, {1}, {}), Addresses{100}) << i;
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, AFreedTableIsNone) {
  launch(true, {1}, {100});
  tables->forget_tables(1, 1);
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, AWindowOfNothingTurnsItOff) {
  window = 0;
  launch(true, {1}, {100});
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, OldRecordsAreNotTakenForNewOnes) {
  window = 4096;  // more than is remembered
  launch(true, {1}, {100});
  for (int i = 0; i < 5000; ++i) launch(true, {7}, {700});
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

}  // namespace
}  // namespace vmem::runtime
