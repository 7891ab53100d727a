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
    for (const std::uintptr_t table : small) tables->name_table(table);
    for (const std::uintptr_t target : large) tables->name_target(target);
    tables->finish(fills, [&](std::uintptr_t target) { reached.insert(target); });
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
  EXPECT_EQ(launch(false, {2}, {}), Addresses{100});
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
