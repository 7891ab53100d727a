// What launches may reach through tables.
#include "runtime/pointer_tables.hpp"

#include <gtest/gtest.h>

#include <set>

namespace vmem::runtime {
namespace {

using Addresses = std::set<std::uintptr_t>;

struct Tables : ::testing::Test {
  std::unique_ptr<PointerTables> tables = std::make_unique<PointerTables>();
  std::uint32_t window = 64;

  Addresses launch(bool fills, const Addresses& small, const Addresses& large) {
    Addresses reached;
    tables->begin(window);
    for (const std::uintptr_t base : small) tables->name(base, true);
    for (const std::uintptr_t base : large) tables->name(base, false);
    tables->finish(fills, [&](std::uintptr_t target) {
      if (!small.contains(target) && !large.contains(target)) reached.insert(target);
    });
    return reached;
  }
};

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
  const std::uintptr_t targets[] = {1, 2, 100};
  tables->begin(window);
  tables->note(1, targets);
  for (std::uint32_t i = 0; i < 3 * window; ++i) launch(false, {7}, {700});
  EXPECT_EQ(launch(false, {1}, {}), (Addresses{2, 100}));
  tables->forget_table(1);
  EXPECT_EQ(launch(false, {1}, {}), Addresses{});
}

TEST_F(Tables, WhatAKnownTableWasNamedWithLeadsThereForAWindow) {
  const std::uintptr_t targets[] = {100};
  tables->begin(window);
  tables->note(1, targets);
  launch(false, {1, 2}, {});
  for (std::uint32_t i = 0; i < window; ++i) EXPECT_EQ(launch(false, {2}, {}), Addresses{100}) << i;
  EXPECT_EQ(launch(false, {2}, {}), Addresses{});
}

TEST_F(Tables, AKnownTableFilledAgainKeepsWhatIsRecent) {
  const std::uintptr_t first[] = {100}, second[] = {200}, third[] = {300};
  tables->begin(window);
  tables->note(1, first);
  tables->note(1, second);
  EXPECT_EQ(launch(false, {1}, {}), (Addresses{100, 200}));
  for (std::uint32_t i = 0; i < window; ++i) launch(false, {7}, {700});
  tables->note(1, third);
  for (std::uint32_t i = 0; i < 2 * window; ++i) launch(false, {7}, {700});
  EXPECT_EQ(launch(false, {1}, {}), Addresses{300});
}

TEST_F(Tables, WhatIsRetractedIsNoTable) {
  const std::uintptr_t first[] = {100}, second[] = {200};
  tables->begin(window);
  const std::uint64_t wrong = tables->note(1, first);
  tables->note(1, second);
  tables->retract(1, wrong);
  EXPECT_EQ(launch(false, {1}, {}), Addresses{200});
}

TEST_F(Tables, TheKnownTableThatWasNotUsedForLongestMakesRoom) {
  const std::uintptr_t targets[] = {100};
  tables->begin(window);
  for (std::uintptr_t table = 1000; table < 1000 + 1024; ++table) tables->note(table, targets);
  launch(false, {1000}, {});
  tables->note(1, targets);
  EXPECT_EQ(launch(false, {1001}, {}), Addresses{});
  EXPECT_EQ(launch(false, {1000}, {}), Addresses{100});
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
  tables->forget_table(1);
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
