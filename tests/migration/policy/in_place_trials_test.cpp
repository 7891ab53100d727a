// Which blocks end up in host memory. A program is played in its own time: a period uses blocks in
// order, and takes longer for each that goes back and forth, or is used in place.
#include "migration/policy/in_place_trials.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <vector>

namespace vmem::migration::testing {
namespace {

using Block = InPlaceTrials::Block;

constexpr std::uint64_t kPage = std::uint64_t{16} << 20;
constexpr std::uint32_t kGranules = 64;  // of a block, and between the first ones of two

struct Program {
  struct Use {
    Block block;
    std::uint64_t moved_us;     // if it is in HBM for it: it came in, and leaves again
    std::uint64_t in_place_us;  // if not
    std::uint64_t changed = kPage / 4;
    std::uint16_t stream = 1;
  };

  std::vector<Use> period;
  std::uint64_t other_us = 20'000;  // of a period
  std::uint64_t behind = 0;         // uses that the GPU is behind
  std::set<Block> host;
  std::uint64_t now_us = 1;
  std::uint32_t moves = 0;  // changes told
  InPlaceTrials trials;

  explicit Program(std::vector<Use> uses, std::uint64_t most_bytes = 100 * kPage)
      : period(std::move(uses)), trials(most_bytes) {}

  void apply(const InPlaceTrials::Changes& changes) {
    for (const Block block : changes.to_hbm) EXPECT_EQ(host.erase(block), 1u) << block;
    for (const Block block : changes.to_host) EXPECT_TRUE(host.insert(block).second) << block;
    moves += changes.empty() ? 0 : 1;
  }

  std::uint64_t run(int periods) {
    const std::uint64_t began_us = now_us;
    for (int i = 0; i < periods; ++i) {
      std::set<Block> seen;
      for (const Use& use : period) {
        const bool first = seen.insert(use.block).second, in_place = host.contains(use.block);
        if (first && !in_place) trials.fetched(use.block, kPage);
        queued_.push_back({trials.used(use.block, use.stream, now_us), in_place ? use.in_place_us
                                                                       : first  ? use.moved_us
                                                                                : 0});
        if (first && !in_place)
          trials.compared({.block = use.block,
                           .end = use.block + kGranules,
                           .device = 0,
                           .block_bytes = kPage,
                           .page_bytes = kPage,
                           .changed_bytes = use.changed});
        while (queued_.size() > behind) finish_one();
      }
      now_us += other_us;
      apply(trials.look(now_us));
    }
    return now_us - began_us;
  }

 private:
  struct Queued {
    bool asked;
    std::uint64_t us;
  };
  void finish_one() {
    const Queued done = queued_.front();
    queued_.pop_front();
    now_us += done.us;
    if (done.asked) apply(trials.measured(now_us));
  }
  std::deque<Queued> queued_;
};

constexpr Block kTable = 0, kOther = kGranules, kThird = 2 * kGranules, kFourth = 3 * kGranules;

TEST(InPlaceTrials, ABlockThatIsFasterInPlaceStaysThere) {
  Program program({{kTable, 30'000, 200}, {kTable, 30'000, 200}});
  const std::uint64_t before_us = program.run(10);
  program.run(30);
  EXPECT_EQ(program.host, std::set<Block>{kTable});
  EXPECT_EQ(program.moves, 1u);
  EXPECT_LT(program.run(10), before_us / 2);
}

TEST(InPlaceTrials, ABlockThatIsSlowerInPlaceComesBackAndIsTriedEverMoreRarely) {
  Program program({{kTable, 10'000, 40'000}});
  program.run(100);
  EXPECT_TRUE(program.host.empty());
  EXPECT_GE(program.moves, 2u);
  const std::uint32_t after_100 = program.moves;
  program.run(100);
  EXPECT_LE(program.moves, after_100 + 2);
  // A run of 3,000 periods would take 90 s with the block in HBM.
  EXPECT_LT(program.run(3'000), 91'800'000u);
}

TEST(InPlaceTrials, ATrialThatTakesMuchTooLongEndsBeforeItsWindowsDo) {
  Program program({{kTable, 10'000, 2'000'000}});
  std::uint32_t in_place = 0;
  for (int i = 0; i < 60; ++i) {
    program.run(1);
    in_place += program.host.empty() ? 0 : 1;
  }
  EXPECT_GE(program.moves, 2u);
  EXPECT_LE(in_place, 3u);
}

// Nothing says that such blocks are used in part.
TEST(InPlaceTrials, BlocksThatChangeAsAWholeOrNotAtAllAreNotTried) {
  Program program({{kTable, 30'000, 200, kPage}, {kOther, 30'000, 200, 0}});
  program.run(100);
  EXPECT_EQ(program.moves, 0u);
}

TEST(InPlaceTrials, OfSeveralBlocksThoseThatAreFasterInPlaceStay) {
  Program program({{kTable, 20'000, 200}, {kOther, 10'000, 90'000}, {kThird, 20'000, 200}, {kFourth, 10'000, 80'000}});
  program.run(400);
  EXPECT_EQ(program.host, (std::set<Block>{kTable, kThird}));
}

// The launching threads are far ahead: a trial is judged by what the GPU does.
TEST(InPlaceTrials, UsesInTheQueueDoNotCountForTheTrial) {
  Program slower({{kTable, 10'000, 40'000}}), faster({{kTable, 30'000, 200}});
  slower.behind = faster.behind = 40;
  slower.run(300);
  EXPECT_TRUE(slower.host.empty());
  faster.run(300);
  EXPECT_EQ(faster.host, std::set<Block>{kTable});
}

TEST(InPlaceTrials, UsesOfAPeriodThatAreUnevenAreComparedWithTheSameOnes) {
  for (const std::size_t uses : {1u, 2u, 3u, 4u, 6u, 12u}) {
    // All of a period's uses but the first come at its end; in place it takes as long.
    std::vector<Program::Use> period{{kTable, 1'000, 10}};
    period.push_back({kOther, 60'000, 60'000, kPage});
    while (period.size() <= uses) period.push_back({kTable, 0, 990 / uses});
    Program program(period);
    program.other_us = 0;
    program.run(200);
    EXPECT_TRUE(program.host.empty()) << uses;
  }
}

TEST(InPlaceTrials, ABlockThatBecomesSlowerInPlaceLeaves) {
  Program program({{kTable, 30'000, 200}});
  program.run(50);
  ASSERT_EQ(program.host, std::set<Block>{kTable});
  program.period.front().in_place_us = 100'000;
  program.run(300);
  EXPECT_TRUE(program.host.empty());
}

TEST(InPlaceTrials, APauseOfTheProgramDoesNotUndoAVerdict) {
  Program program({{kTable, 30'000, 200}});
  program.run(50);
  ASSERT_EQ(program.host, std::set<Block>{kTable});
  for (int i = 0; i < 40; ++i) {
    program.run(31);
    program.now_us += 5'000'000;
    ASSERT_EQ(program.host, std::set<Block>{kTable}) << i;
  }
}

TEST(InPlaceTrials, ABlockThatIsNoLongerUsedMakesRoomForOthers) {
  Program program({{kTable, 30'000, 200}});
  program.run(3);
  ASSERT_TRUE(program.trials.measuring());
  program.period = {{kOther, 30'000, 200}};
  program.run(1);
  program.now_us += 11'000'000;
  program.run(50);
  EXPECT_EQ(program.host, std::set<Block>{kOther});
}

// The last page of a block that the program has no use for any more leaves HBM.
TEST(InPlaceTrials, ABlockThatIsNeverUsedAgainMakesRoomForOthers) {
  Program program({{kOther, 30'000, 200}});
  program.trials.compared({kTable, kTable + kGranules, 0, kPage, kPage, kPage / 4});
  ASSERT_TRUE(program.trials.measuring());
  program.run(1);
  program.now_us += 11'000'000;
  program.run(50);
  EXPECT_EQ(program.host, std::set<Block>{kOther});
}

TEST(InPlaceTrials, WithNothingInUseNothingIsMeasured) {
  Program program({{kTable, 30'000, 200}});
  program.run(3);
  ASSERT_TRUE(program.trials.measuring());
  program.apply(program.trials.look(program.now_us));
  program.apply(program.trials.look(program.now_us + 11'000'000));
  EXPECT_FALSE(program.trials.measuring());
}

// What is used on another stream may belong to a part of the program that runs by itself.
TEST(InPlaceTrials, BlocksOfOtherStreamsAreTriedByThemselves) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200, kPage / 4, 2}});
  while (program.host.empty()) program.run(1);
  EXPECT_EQ(program.host.size(), 1u);
  program.run(100);
  EXPECT_EQ(program.host, (std::set<Block>{kTable, kOther}));
}

TEST(InPlaceTrials, BlocksThatTheTrialDidNotUseGoBack) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200}});
  while (program.host.empty()) program.run(1);
  ASSERT_EQ(program.host, (std::set<Block>{kTable, kOther}));
  program.period.pop_back();
  program.run(60);
  EXPECT_EQ(program.host, std::set<Block>{kTable});
}

TEST(InPlaceTrials, NoMoreIsTriedThanThereIsRoomFor) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200}, {kThird, 30'000, 200}}, 2 * kPage);
  program.run(200);
  EXPECT_EQ(program.host.size(), 2u);
  Program too_large({{kTable, 30'000, 200}}, kPage - 1);
  too_large.run(100);
  EXPECT_TRUE(too_large.host.empty());
}

TEST(InPlaceTrials, AfterTheFreeOfAGroupsClockOtherGroupsAreStillChecked) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200, kPage / 4, 2}});
  program.run(200);
  ASSERT_EQ(program.host, (std::set<Block>{kTable, kOther}));
  program.host.erase(kTable);
  program.apply(program.trials.ended(kTable, kTable + kGranules));
  program.period.erase(program.period.begin());
  program.period.front().in_place_us = 100'000;
  program.run(600);
  EXPECT_TRUE(program.host.empty());
}

TEST(InPlaceTrials, ABlockThatMustBeInHbmIsDropped) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200}});
  program.run(50);
  ASSERT_EQ(program.host, (std::set<Block>{kTable, kOther}));
  program.apply(program.trials.dropped(kOther + 1, kOther + 2));
  program.run(100);
  EXPECT_EQ(program.host, std::set<Block>{kTable});
}

TEST(InPlaceTrials, WhatIsFreedIsForgotten) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200}});
  program.run(50);
  ASSERT_EQ(program.host, (std::set<Block>{kTable, kOther}));
  program.apply(program.trials.ended(kTable + 3, kTable + 4));
  program.host.erase(kTable);
  program.apply(program.trials.ended(kOther, kOther + kGranules));
  program.host.clear();
  EXPECT_FALSE(program.trials.knows_any());
  EXPECT_FALSE(program.trials.measuring());
  program.run(50);
  EXPECT_EQ(program.host, (std::set<Block>{kTable, kOther})) << "found again";
}

TEST(InPlaceTrials, AFreeOfTheBlockWhoseUsesAreCountedEndsTheTrial) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200}});
  while (program.host.empty()) program.run(1);
  ASSERT_EQ(program.host, (std::set<Block>{kTable, kOther}));
  const auto changes = program.trials.ended(kTable, kTable + kGranules);
  EXPECT_EQ(changes.to_hbm, std::vector<Block>{kOther});
  program.host.clear();
  program.run(50);
  EXPECT_EQ(program.host, (std::set<Block>{kTable, kOther}));
}

TEST(InPlaceTrials, AFreeOfAnotherBlockDoesNotEndTheTrial) {
  Program program({{kTable, 30'000, 200}, {kOther, 30'000, 200}});
  while (program.host.empty()) program.run(1);
  EXPECT_TRUE(program.trials.ended(kOther, kOther + kGranules).empty());
  EXPECT_TRUE(program.trials.measuring());
}

}  // namespace
}  // namespace vmem::migration::testing
