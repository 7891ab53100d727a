#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "campaign/seeds.hpp"
#include "cluster/enrollment/enrollment_fixture.hpp"
#include "cluster/enrollment/free_slices.hpp"

namespace vmem::cluster::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SlicesTest : public EnrollmentTest {
 protected:
  static Ticket ask_for(Node& node, std::uint32_t count) {
    const Ticket ticket = node.host->enrollment().take_slices(count);
    node.host->waits_for(ticket);
    node.host->wake();
    return ticket;
  }
  template <class Ask>
  void time_out(Node& node, Ask what) {
    const Ticket ticket = what(node.host->enrollment());
    node.host->waits_for(ticket);
    node.host->wake();
    queue.run_until(queue.now_us() + 1);  // the reading is posted, and will be answered
    registry.faults.replies_lost = 1000;
    run(20);
    registry.faults.replies_lost = 0;
    const auto answers = all<SlicesTaken>(node);
    ASSERT_FALSE(answers.empty());
    ASSERT_EQ(answers.back().ticket, ticket);
    ASSERT_FALSE(answers.back().slices);
    ASSERT_EQ(answers.back().slices.error().status, VMEM_ERROR_TIMEOUT);
  }
  // The commit is done, and nobody hears of it.
  void time_out_take(Node& node, std::uint32_t count) {
    time_out(node, [&](Enrollment& each) { return each.take_slices(count); });
  }
  // An expelled node's former slice, likewise.
  void time_out_take_over(Node& node, Slice slice, NodeId from) {
    time_out(node, [&](Enrollment& each) { return each.take_over_slice(slice, from); });
  }
  Result<std::vector<Slice>> take_over(Node& node, Slice slice, NodeId from) {
    return ask<SlicesTaken>(node, [&](Enrollment& each) { return each.take_over_slice(slice, from); }).slices;
  }
  Error refused(Node& node, std::uint32_t count) {
    const auto taken = ask<SlicesTaken>(node, [&](Enrollment& each) { return each.take_slices(count); });
    EXPECT_FALSE(taken.slices);
    return taken.slices ? Error{} : taken.slices.error();
  }
  std::string holder(std::uint32_t slice) {
    const auto record = registry.records().find(slice_key(Slice{slice}));
    return record == registry.records().end() ? "" : record->second.value;
  }
  // Has it hold one slice, and then another id.
  Node& add_expelled() {
    Node& node = add(parameters(8));
    take(node, 1);
    node.host->stop();
    run(95);
    node.host->go_on();
    run(3);
    EXPECT_EQ(all<Expelled>(node).size(), 1u);
    return node;
  }
};

TEST_F(SlicesTest, TheSliceOfALiveNodeIsNotTakenOver) {
  auto &a = add(), &b = add();
  take(a, 1);
  const auto over = [&](NodeId from) {
    return ask<SlicesTaken>(b, [&](Enrollment& each) { return each.take_over_slice(Slice{0}, from); }, 20);
  };
  EXPECT_EQ(over(NodeId{1}).slices.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(over(NodeId{7}).slices.error().message, HasSubstr("slice 0 of node 7 was to be taken over, and node 1"));
  EXPECT_THAT(b.host->enrollment().slices(), IsEmpty());
}

TEST_F(SlicesTest, TheLowestSlicesAreTakenAndReleasedOnesComeAgain) {
  auto &a = add(), &b = add();
  EXPECT_THAT(take(a, 3), ElementsAre(Slice{0}, Slice{1}, Slice{2}));
  ASSERT_TRUE(a.host->enrollment().release_slice(Slice{1}));
  a.host->wake();
  EXPECT_EQ(a.host->enrollment().release_slice(Slice{1}).error().status, VMEM_ERROR_INVALID_VALUE);
  run(1);
  EXPECT_FALSE(has("slices/1"));
  EXPECT_THAT(take(b, 1), ElementsAre(Slice{1}));
}

TEST_F(SlicesTest, WhenNoSliceIsLeftTheErrorSaysWhoHoldsMost) {
  auto &a = add(), &b = add();
  take(a, 3);
  const auto taken = ask<SlicesTaken>(b, [](Enrollment& each) { return each.take_slices(2); });
  ASSERT_FALSE(taken.slices);
  EXPECT_EQ(taken.slices.error().status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(taken.slices.error().message,
              HasSubstr("2 adjacent slices of the cluster's address space were asked for, and 1 of 4 are "
                        "free, at most 1 of them in a row, from slice 3 on; node 1 holds most, 3"));
  EXPECT_FALSE(has("slices/3")) << "all or nothing";
}

TEST_F(SlicesTest, SlicesThatAreTakenAtOnceAreAdjacent) {
  auto &a = add(parameters(8)), &b = add(parameters(8));
  take(a, 1);
  EXPECT_THAT(take(b, 1), ElementsAre(Slice{1}));
  take(a, 1);
  ASSERT_TRUE(b.host->enrollment().release_slice(Slice{1}));
  b.host->wake();
  run(1);
  EXPECT_THAT(take(b, 2), ElementsAre(Slice{3}, Slice{4}));
  EXPECT_THAT(take(b, 1), ElementsAre(Slice{1}));
  EXPECT_THAT(take(a, 3), ElementsAre(Slice{5}, Slice{6}, Slice{7}));
}

TEST_F(SlicesTest, TheErrorNamesTheLongestRun) {
  auto& a = add(parameters(8));
  take(a, 8);
  for (const std::uint32_t slice : {1u, 2u, 4u, 5u, 7u}) ASSERT_TRUE(a.host->enrollment().release_slice(Slice{slice}));
  a.host->wake();
  run(1);
  const Error error = refused(a, 3);
  EXPECT_EQ(error.status, VMEM_ERROR_ADDRESS_SPACE);
  EXPECT_THAT(error.message, HasSubstr("3 adjacent slices of the cluster's address space were asked for, and 5 of 8 "
                                       "are free, at most 2 of them in a row, from slice 1 on; node 1 holds most, 3"));
  EXPECT_EQ(a.host->enrollment().slices().size(), 3u);
  EXPECT_FALSE(has("slices/1")) << "all or nothing";
}

TEST_F(SlicesTest, WhoAsksAtTheSameTimeGetsOtherSlices) {
  for (int i = 0; i < 4; ++i) add(parameters(8));
  for (const auto& node : nodes) ask_for(*node, 2);
  run(15);
  std::set<Slice> taken;
  for (const auto& node : nodes) {
    const auto answers = all<SlicesTaken>(*node);
    ASSERT_EQ(answers.size(), 1u);
    ASSERT_TRUE(answers[0].slices) << answers[0].slices.error().message;
    ASSERT_EQ(answers[0].slices->size(), 2u);
    EXPECT_EQ(std::uint32_t((*answers[0].slices)[0]) + 1, std::uint32_t((*answers[0].slices)[1]));
    taken.insert(answers[0].slices->begin(), answers[0].slices->end());
  }
  EXPECT_EQ(taken.size(), 8u);
}

TEST_F(SlicesTest, WhatATimedOutRequestTookGoesToTheNext) {
  auto &a = add(parameters(8)), &b = add(parameters(8));
  take(b, 1);
  time_out_take(a, 2);
  ASSERT_TRUE(has("slices/1") && has("slices/2")) << "it was done, or this shows nothing";
  EXPECT_THAT(a.host->enrollment().slices(), IsEmpty());
  EXPECT_THAT(take(b, 2), ElementsAre(Slice{3}, Slice{4}));
  EXPECT_THAT(take(a, 2), ElementsAre(Slice{1}, Slice{2}));
}

TEST_F(SlicesTest, WhatTheNextRequestLeavesIsReleased) {
  auto &a = add(parameters(8)), &b = add(parameters(8));
  time_out_take(a, 3);
  take(b, 1);
  EXPECT_THAT(take(a, 1), ElementsAre(Slice{0}));
  run(1);
  EXPECT_FALSE(has("slices/1") || has("slices/2"));
  EXPECT_THAT(take(b, 2), ElementsAre(Slice{1}, Slice{2}));
}

TEST_F(SlicesTest, WhatIsTooShortForTheNextRequestIsReleased) {
  auto &a = add(parameters(8)), &b = add(parameters(8));
  time_out_take(a, 2);
  take(b, 1);
  EXPECT_THAT(take(a, 3), ElementsAre(Slice{3}, Slice{4}, Slice{5}));
  run(1);
  EXPECT_FALSE(has("slices/0") || has("slices/1"));
}

TEST_F(SlicesTest, WhatDoesNotSufficeIsReleased) {
  auto &a = add(), &b = add();
  time_out_take(a, 2);
  take(b, 1);
  EXPECT_THAT(refused(a, 3).message, HasSubstr("3 of 4 are free, at most 2 of them in a row, from slice 0 on"));
  run(1);
  EXPECT_FALSE(has("slices/0") || has("slices/1"));
  EXPECT_THAT(take(b, 2), ElementsAre(Slice{0}, Slice{1}));
}

// Regions of the process may live in it.
TEST_F(SlicesTest, ASliceWhoseTakeOverTimedOutIsKeptForThat) {
  auto& a = add_expelled();
  time_out_take_over(a, Slice{0}, NodeId{1});
  ASSERT_EQ(holder(0), slice_value(id(a))) << "it was done, or this shows nothing";
  EXPECT_THAT(take(a, 1), ElementsAre(Slice{1}));
  EXPECT_THAT(refused(a, 8).message, HasSubstr("6 of 8 are free"));
  run(1);
  EXPECT_EQ(holder(0), slice_value(id(a)));
  EXPECT_TRUE(take_over(a, Slice{0}, NodeId{1}));
  EXPECT_THAT(a.host->enrollment().slices(), ElementsAre(Slice{0}, Slice{1}));
}

TEST_F(SlicesTest, ASliceWhoseTakeOverTimedOutCanBeReleased) {
  auto& a = add_expelled();
  time_out_take_over(a, Slice{0}, NodeId{1});
  ASSERT_TRUE(a.host->enrollment().release_slice(Slice{0}));
  a.host->wake();
  run(1);
  EXPECT_FALSE(has("slices/0"));
  EXPECT_FALSE(a.host->enrollment().release_slice(Slice{0}));
  EXPECT_THAT(take(a, 1), ElementsAre(Slice{0}));
}

TEST_F(SlicesTest, AnExpulsionForgetsATakeOverThatTimedOut) {
  auto& a = add_expelled();
  time_out_take_over(a, Slice{0}, NodeId{1});
  put(node_key(id(a)), std::nullopt);
  put("slices/0", std::nullopt);
  run(3);
  ASSERT_EQ(all<Expelled>(a).size(), 2u);
  time_out_take(a, 1);
  ASSERT_EQ(holder(0), slice_value(id(a)));
  EXPECT_THAT(take(a, 1), ElementsAre(Slice{0}));
}

TEST_F(SlicesTest, LeavingReleasesWhatTimedOut) {
  auto& a = add_expelled();
  time_out_take_over(a, Slice{0}, NodeId{1});
  time_out_take(a, 2);
  ASSERT_TRUE(has("slices/0") && has("slices/1") && has("slices/2"));
  a.host->enrollment().leave({});
  a.host->wake();
  run(2);
  EXPECT_FALSE(has("slices/0") || has("slices/1") || has("slices/2"));
}

std::set<Slice> random_slices(std::mt19937_64& random, std::uint32_t below, std::uint32_t share) {
  std::set<Slice> slices;
  for (std::uint32_t i = 0; i < below; ++i)
    if (random() % 16 < share) slices.insert(Slice{i});
  return slices;
}

// All choices, one by one.
TEST(FreeSlices, ChoosesMostStraysAndThenTheLowest) {
  const std::uint64_t seed = test::printed_seed();
  std::mt19937_64 random(seed);
  std::uint32_t found = 0, with_strays = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::uint32_t slices = std::uint32_t(random() % 24), count = std::uint32_t(1 + random() % 6);
    // Beyond the end, too: records of a cluster that was made anew.
    const std::set<Slice> taken = random_slices(random, slices + 3, std::uint32_t(random() % 8));
    std::set<Slice> strays = random_slices(random, slices + 3, std::uint32_t(random() % 6));
    for (const Slice slice : taken) strays.erase(slice);
    std::optional<Slice> best;
    std::size_t most = 0;
    std::uint32_t row = 0, longest = 0, total = 0;
    for (std::uint32_t i = 0; i < slices; ++i) {
      row = taken.contains(Slice{i}) ? 0 : row + 1;
      total += row != 0;
      longest = std::max(longest, row);
      if (row < count) continue;
      std::size_t within = 0;
      for (std::uint32_t each = i + 1 - count; each <= i; ++each) within += strays.contains(Slice{each});
      if (!best || within > most) best = Slice{i + 1 - count}, most = within;
    }
    const FreeSlices free(slices, taken, strays);
    ASSERT_EQ(free.choose(count), best) << "VMEM_TEST_SEED=" << seed << ", round " << round;
    ASSERT_EQ(free.longest().count, longest);
    ASSERT_EQ(free.total(), total);
    found += best.has_value();
    with_strays += most > 0;
  }
  EXPECT_GT(found, 1000u);
  EXPECT_GT(with_strays, 500u);
}

}  // namespace
}  // namespace vmem::cluster::simulator
