// What launches may reach through tables.
#include "runtime/pointer_tables.hpp"

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
  // A launch looked at: what it left in the table.
  bool look(std::uintptr_t table, const std::vector<std::uintptr_t>& holds, bool whole = true) {
    tables->begin(window, {});
    return tables->settle(table, *begin_look(table), holds, whole);
  }
  Look begin_look(std::uintptr_t table, std::span<const std::uintptr_t> doubts = {}) {
    auto look = tables->begin_look(doubts);
    tables->note(table, look);
    return look;
  }
  Addresses known_targets(std::uintptr_t table) { return launch(false, {}, {table}); }  // and leaves no record
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
  EXPECT_TRUE(look(1, {2, 100}));
  for (std::uint32_t i = 0; i < 3 * window; ++i) launch(false, {7}, {700});
  EXPECT_EQ(launch(false, {1}, {}), (Addresses{2, 100}));
  tables->forget_tables(1, 1);
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, ATableInALargeAllocationIsKnownByItsAddress) {
  look(1008, {100});
  EXPECT_EQ(launch(false, {}, {1008}), Addresses{100});
  EXPECT_EQ(launch(false, {}, {1000}), Addresses{});
  tables->forget_tables(1000, 512);
  EXPECT_EQ(launch(false, {}, {1008}), Addresses{});
}

TEST_F(Tables, WhatAKnownTableWasNamedWithLeadsThereForAWindow) {
  look(1, {100});
  launch(false, {1, 2}, {});
  for (std::uint32_t i = 0; i < window; ++i) EXPECT_EQ(launch(false, {2}, {}), Addresses{100}) << i;
  EXPECT_EQ(launch(false, {2}, {}), Addresses{});
}

TEST_F(Tables, WhatIsSeenTakesThePlaceOfWhatWas) {
  look(1, {100, 200});
  EXPECT_FALSE(look(1, {100, 200})) << "nothing new";
  EXPECT_FALSE(look(1, {100})) << "nothing new";
  EXPECT_EQ(known_targets(1), Addresses{100});
  EXPECT_TRUE(look(1, {300}));
  EXPECT_EQ(known_targets(1), Addresses{300});
}

TEST_F(Tables, WhatHoldsNothingAnyMoreIsNoTable) {
  look(1, {100});
  EXPECT_FALSE(look(1, {}));
  EXPECT_EQ(known_targets(1), Addresses{});
}

TEST_F(Tables, WhatIsSeenOfAPartAddsToTheRest) {
  look(1, {100}, false);
  EXPECT_TRUE(look(1, {200}, false));
  EXPECT_FALSE(look(1, {200}, false));
  EXPECT_EQ(known_targets(1), (Addresses{100, 200}));
}

TEST_F(Tables, WhereALookDidNotReachTheDoubtsRemain) {
  const std::uintptr_t named[] = {1, 200, 300}, seen[] = {100};
  tables->begin(window, {});
  EXPECT_TRUE(tables->settle(1, *begin_look(1, named), seen, false));
  EXPECT_EQ(known_targets(1), (Addresses{100, 200, 300}));
}

TEST_F(Tables, LooksDoNotShortenTheWindow) {
  launch(true, {1}, {100});
  for (int i = 0; i < 200; ++i) tables->settle(7, *begin_look(7), {}, true);
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
  EXPECT_TRUE(tables->settle(1, *first, seen, true));
  EXPECT_EQ(known_targets(1), (Addresses{200, 300}));
}

TEST_F(Tables, TwoLooksThatSeeTheSameTellOnce) {
  const std::uintptr_t named[] = {1, 200, 300}, seen[] = {200};
  tables->begin(window, {});
  const Look first = begin_look(1, named), second = begin_look(1, named);
  EXPECT_TRUE(tables->settle(1, *first, seen, true));
  EXPECT_FALSE(tables->settle(1, *second, seen, true));
  EXPECT_EQ(known_targets(1), Addresses{200});
}

TEST_F(Tables, LooksMayEndInAnyOrder) {
  look(1, {100});
  const std::uintptr_t named[] = {1, 200, 300}, seen_first[] = {100, 200}, seen_second[] = {200};
  tables->begin(window, {});
  const Look first = begin_look(1, named), second = begin_look(1, named);
  EXPECT_TRUE(tables->settle(1, *second, seen_second, true));
  EXPECT_EQ(known_targets(1), (Addresses{200, 300})) << "the first may still find it written";
  EXPECT_TRUE(tables->settle(1, *first, seen_first, true)) << "100 was written, too";
  EXPECT_EQ(known_targets(1), Addresses{200});
}

// What a kernel is taken for depends on this: one that writes numbers next to pointers writes no pointers.
TEST_F(Tables, ALookUnderWayIsNothingThatTheNextOneFinds) {
  const std::uintptr_t named[] = {1, 200, 300};
  tables->begin(window, {});
  const Look first = begin_look(1, named), second = begin_look(1, named);
  EXPECT_FALSE(tables->settle(1, *second, {}, true));
  EXPECT_FALSE(tables->settle(1, *first, {}, true));
  EXPECT_EQ(known_targets(1), Addresses{});
}

TEST_F(Tables, WhatIsBelievedIsKnownUntilALookThatBeginsLater) {
  const std::uintptr_t believed[] = {100, 200};
  tables->begin(window, {});
  const Look before = begin_look(1);
  tables->believe(1, believed);
  EXPECT_FALSE(tables->settle(1, *before, {}, true));
  EXPECT_EQ(known_targets(1), (Addresses{100, 200}));
  EXPECT_FALSE(look(1, {}));
  EXPECT_EQ(known_targets(1), Addresses{});
}

TEST_F(Tables, WhatWasBelievedSinceIsNotWhatALookKnewBefore) {
  const std::uintptr_t known[] = {100}, believed[] = {100, 200};
  look(1, {100});
  tables->begin(window, {});
  const Look first = begin_look(1), second = begin_look(1);
  tables->believe(1, believed);
  EXPECT_FALSE(tables->settle(1, *first, known, true));
  EXPECT_TRUE(tables->settle(1, *second, believed, true)) << "200 was written";
}

// A launch that names many tables reaches what each of them may lead to once, not once for each table and each time that was said.
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
  EXPECT_EQ(reached, 2 * named.size());
}

// The kernel wrote them all the same.
TEST_F(Tables, ALookAtATableFreedMeanwhileFindsPointersThatNobodyRemembers) {
  tables->begin(window, {});
  const std::uintptr_t named[] = {100};
  for (const bool there_is_another : {false, true}) {
    const Look freed = begin_look(1, named), of_numbers = begin_look(1, named);
    tables->forget_tables(1, 1);
    const Look another = there_is_another ? begin_look(1) : nullptr;
    EXPECT_TRUE(tables->settle(1, *freed, named, true));
    EXPECT_FALSE(tables->settle(1, *of_numbers, {}, true));
    EXPECT_EQ(known_targets(1), Addresses{});
  }
}

TEST_F(Tables, TheKnownTableThatWasNotUsedForLongestMakesRoom) {
  for (std::uintptr_t table = 1000; table < 1000 + 1024; ++table) look(table, {100});
  launch(false, {1000}, {});
  look(1, {100});
  EXPECT_EQ(known_targets(1001), Addresses{});
  EXPECT_EQ(known_targets(1000), Addresses{100});
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
