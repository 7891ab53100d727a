// What was busy when, in the later half of a trace's launches.
#include "tools/trace/shares.hpp"

#include <gtest/gtest.h>

namespace vmem::tools {
namespace {

using trace::Transfer;
using Direction = Transfer::Direction;
using Place = Transfer::Place;

class TraceShares : public ::testing::Test {
 protected:
  void launch(std::uint64_t at_ns) { trace_.events.push_back({at_ns, trace::Launch{}}); }
  void copy(std::uint64_t at_ns, std::uint64_t took_ns, Direction direction, Place place = Place::host,
            bool copied = true) {
    trace_.events.push_back(
        {at_ns, Transfer{.took_ns = took_ns, .direction = direction, .place = place, .copied = copied}});
  }
  Shares shares() const { return shares_of(trace_); }

  trace::Trace trace_;
};

TEST_F(TraceShares, ATraceWithoutLaunchesHasNone) {
  copy(0, 100, Direction::in);
  EXPECT_EQ(shares().all, 0u);
  EXPECT_EQ(shares().in, 0u);
  EXPECT_EQ(shares().neither(), 0u);
}

TEST_F(TraceShares, OnlyWhatIsBetweenTheMiddleLaunchAndTheLastCounts) {
  launch(0);
  launch(100);
  copy(50, 100, Direction::in);   // 50 of it before the middle
  copy(180, 90, Direction::out);  // 70 of it after the end
  launch(200);
  EXPECT_EQ(shares().all, 100u);
  EXPECT_EQ(shares().in, 50u);
  EXPECT_EQ(shares().out, 20u);
  EXPECT_EQ(shares().both, 0u);
  EXPECT_EQ(shares().neither(), 30u);
}

TEST_F(TraceShares, CopiesThatOverlapCountOnceInTheirDirection) {
  launch(0);
  copy(0, 100, Direction::in);
  copy(20, 30, Direction::in);
  copy(60, 80, Direction::in);
  copy(90, 20, Direction::out);
  copy(130, 40, Direction::out, Place::peer);
  launch(0);
  launch(200);
  EXPECT_EQ(shares().all, 200u);
  EXPECT_EQ(shares().in, 140u);
  EXPECT_EQ(shares().out, 60u);
  EXPECT_EQ(shares().both, 30u);
  EXPECT_EQ(shares().neither(), 30u);
}

TEST_F(TraceShares, WhatWasNotCopiedOrIsBelowHostMemoryIsNoCopy) {
  launch(0);
  copy(10, 50, Direction::out, Place::host, false);
  copy(10, 50, Direction::in, Place::below);
  launch(100);
  launch(200);
  EXPECT_EQ(shares().in + shares().out, 0u);
}

TEST_F(TraceShares, TheMoverAndWaitsAreCountedByTheirTime) {
  launch(0);
  launch(0);
  trace_.events.push_back({10, trace::Busy{.took_ns = 20}});
  trace_.events.push_back({40, trace::Busy{.took_ns = 5}});
  trace_.events.push_back({50, trace::Wait{.took_ns = 40}});
  trace_.events.push_back({60, trace::Wait{.took_ns = 40}});  // of another thread
  launch(100);
  EXPECT_EQ(shares().mover, 25u);
  EXPECT_EQ(shares().waiting, 50u);
}

}  // namespace
}  // namespace vmem::tools
