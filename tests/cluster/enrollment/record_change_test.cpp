// A node changes its record while it is a member.
#include <gmock/gmock.h>

#include "cluster/enrollment/enrollment_fixture.hpp"
#include "cluster/enrollment/json_fields.hpp"
#include "cluster/registry/request_check.hpp"

namespace vmem::cluster::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class RecordChangeTest : public EnrollmentTest {
 protected:
  static NodeRecord lending(std::uint64_t memory) {
    return {.incarnation = Incarnation{77},
            .addresses = {"new:1", "new:2"},
            .boot = "boot",
            .pid = 5,
            .kind = "daemon",
            .labels = {{"rack", "r"}},
            .lends = {.memory = memory},
            .token = "another"};
  }
  static void change(Node& node, std::uint64_t memory) {
    EXPECT_TRUE(node.host->enrollment().change_record(lending(memory)));
    node.host->wake();
  }
  NodeRecord record(const Node& node) {
    const auto found = registry.records().find(node_key(id(node)));
    if (found == registry.records().end()) return {};
    return parse_node_record(found->first, found->second.value).value_or(NodeRecord{});
  }
  static std::uint64_t seen_memory(const Node& by, const Node& of) {
    const auto& seen = by.host->enrollment().members().nodes();
    const auto found = seen.find(id(of));
    return found == seen.end() ? 0 : found->second.record.lends.memory;
  }
  static void expect_undisturbed(const Node& node, NodeId before) {
    EXPECT_EQ(id(node), before);
    EXPECT_THAT(all<Expelled>(node), IsEmpty());
    EXPECT_THAT(all<Fenced>(node), IsEmpty());
  }
};

TEST_F(RecordChangeTest, OthersSeeItAndTheNodeStaysWhoItIs) {
  auto &a = add(), &b = add();
  run(2);
  const NodeRecord before = record(a);
  const LeaseId lease = registry.records().at("nodes/1").lease;
  change(a, 4096);
  run(2);
  NodeRecord expected = lending(4096);
  expected.incarnation = before.incarnation;
  expected.token = before.token;
  EXPECT_EQ(record(a), expected);
  EXPECT_EQ(registry.records().at("nodes/1").lease, lease);
  EXPECT_EQ(all<RecordChanged>(a).size(), 1u);
  EXPECT_EQ(seen_memory(b, a), 4096u);
  ASSERT_EQ(all<NodeChanged>(b).size(), 1u);
  EXPECT_EQ(all<NodeChanged>(b)[0].node, NodeId{1});
  EXPECT_EQ(b.host->enrollment().members().view().members.at(0).address, "new:1");
  EXPECT_THAT(all<NodeChanged>(a), IsEmpty());
  run(300);
  expect_undisturbed(a, NodeId{1});
  EXPECT_THAT(all<NodeGone>(b), IsEmpty());
}

TEST_F(RecordChangeTest, OfSeveralChangesTheLastOneWins) {
  auto& a = add();
  for (std::uint64_t memory = 1; memory <= 5; ++memory) {
    change(a, memory);
    if (memory % 2 == 0) queue.run_until(queue.now_us() + 1);  // one is in flight
  }
  run(1);
  EXPECT_EQ(record(a).lends.memory, 5u);
  EXPECT_EQ(all<RecordChanged>(a).size(), 1u) << "said of the last one";
  expect_undisturbed(a, NodeId{1});
}

TEST_F(RecordChangeTest, AChangeToWhatIsThereIsAnsweredAtOnce) {
  auto& a = add();
  change(a, 1);
  run(1);
  const Revision before = registry.records().at("nodes/1").modified;
  change(a, 1);
  run(1);
  EXPECT_EQ(all<RecordChanged>(a).size(), 2u);
  EXPECT_EQ(registry.records().at("nodes/1").modified, before);
}

TEST_F(RecordChangeTest, ACommitWithoutAnAnswerIsSettledByReading) {
  auto& a = add();
  registry.faults.replies_lost = 1000;
  change(a, 1);
  run(5);
  ASSERT_EQ(record(a).lends.memory, 1u) << "it was done, or this shows nothing";
  EXPECT_THAT(all<RecordChanged>(a), IsEmpty());
  const Revision modified = registry.records().at("nodes/1").modified;
  registry.faults.replies_lost = 0;
  run(5);
  EXPECT_EQ(all<RecordChanged>(a).size(), 1u);
  EXPECT_EQ(registry.records().at("nodes/1").modified, modified) << "done once";
  expect_undisturbed(a, NodeId{1});
}

TEST_F(RecordChangeTest, AChangeDuringADoubtfulOneWins) {
  auto& a = add();
  registry.faults.replies_lost = 1000;
  change(a, 1);
  run(3);
  change(a, 2);
  run(3);
  change(a, 3);
  registry.faults.replies_lost = 0;
  run(5);
  EXPECT_EQ(record(a).lends.memory, 3u);
  EXPECT_EQ(all<RecordChanged>(a).size(), 1u);
  expect_undisturbed(a, NodeId{1});
}

TEST_F(RecordChangeTest, ItIsRepeatedWhileTheRegistryIsAway) {
  auto& a = add();
  for (const std::uint32_t refused : {0u, 1000u}) {
    registry.faults.away = true;
    registry.faults.refused_away = refused;
    change(a, 1 + refused);
    run(30);
    EXPECT_NE(record(a).lends.memory, 1 + refused);
    registry.faults.away = false;
    run(5);
    EXPECT_EQ(record(a).lends.memory, 1 + refused);
  }
  EXPECT_EQ(all<RecordChanged>(a).size(), 2u);
  expect_undisturbed(a, NodeId{1});
}

TEST_F(RecordChangeTest, ItIsRepeatedSoonAndNotOnlyWithTheNextPoll) {
  auto& a = add();
  queue.run_until(queue.now_us() + 300'000);
  registry.faults = {.away = true, .refused_away = 1000};
  change(a, 1);
  queue.run_until(queue.now_us() + 60'000);
  registry.faults = {};
  queue.run_until(queue.now_us() + 300'000);
  EXPECT_EQ(record(a).lends.memory, 1u);
}

TEST_F(RecordChangeTest, ARecordThatIsRefusedDoesNotStopALaterOne) {
  auto& a = add();
  NodeRecord huge = lending(1);
  huge.labels["large"] = std::string(kMostCommitBytes, 'x');
  EXPECT_FALSE(a.host->enrollment().change_record(huge));
  a.host->wake();
  run(5);
  EXPECT_THAT(all<RecordChanged>(a), IsEmpty());
  expect_undisturbed(a, NodeId{1});
  change(a, 2);
  run(5);
  EXPECT_EQ(record(a).lends.memory, 2u);
}

// It would be a node that nobody knows.
TEST_F(RecordChangeTest, ARecordThatOthersCouldNotReadIsRefused) {
  auto& a = add();
  run(2);
  const NodeRecord before = record(a);
  NodeRecord wrong = lending(1);
  wrong.labels["rack"] = std::string(kMostText + 1, 'r');
  const auto refused = a.host->enrollment().change_record(wrong);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(refused.error().message, HasSubstr("'labels'"));
  run(2);
  EXPECT_EQ(record(a), before);
  EXPECT_THAT(all<RecordChanged>(a), IsEmpty());
  expect_undisturbed(a, NodeId{1});
}

TEST_F(RecordChangeTest, AChangeBeforeEnrollmentIsInTheFirstRecord) {
  registry.faults.away = true;
  auto& a = add();
  change(a, 9);
  run(5);
  EXPECT_THAT(all<RecordChanged>(a), IsEmpty());
  registry.faults.away = false;
  run(5);
  EXPECT_EQ(record(a).lends.memory, 9u);
  EXPECT_EQ(record(a).incarnation, Incarnation{1});
  EXPECT_EQ(all<RecordChanged>(a).size(), 1u);
}

// The commit that is in flight has the earlier record, at whichever time the change comes.
TEST_F(RecordChangeTest, AChangeDuringEnrollmentIsNotLost) {
  for (std::uint64_t at_us = 0; at_us < 20'000; at_us += 500) {
    Node& node = *nodes.emplace_back(std::make_unique<Node>());
    EnrolledHost::Setup setup{.parameters = parameters(), .config = {}};
    setup.saw = [&node](const EnrollmentEvent& event) { node.events.push_back(event); };
    node.host = std::make_unique<EnrolledHost>(registry, "h", at_us, std::move(setup));
    node.host->start();
    queue.run_until(queue.now_us() + at_us);
    change(node, 1 + at_us);
    run(2);
    EXPECT_EQ(record(node).lends.memory, 1 + at_us);
    EXPECT_EQ(all<RecordChanged>(node).size(), 1u);
    EXPECT_THAT(all<Expelled>(node), IsEmpty());
  }
}

TEST_F(RecordChangeTest, AnExpelledNodeEnrollsWithItsLastRecord) {
  auto& a = add();
  change(a, 1);
  run(1);
  registry.faults.away = true;
  change(a, 2);
  run(1);
  put("nodes/1", std::nullopt);
  registry.faults.away = false;
  run(5);
  EXPECT_EQ(all<Expelled>(a).size(), 1u);
  EXPECT_EQ(id(a), NodeId{2});
  EXPECT_EQ(record(a).lends.memory, 2u);
  EXPECT_EQ(all<RecordChanged>(a).size(), 2u);
}

TEST_F(RecordChangeTest, ARecordThatAnotherOneWroteEndsTheMembershipAllTheSame) {
  auto& a = add();
  registry.faults.replies_lost = 1000;
  change(a, 1);
  run(3);
  registry.faults.replies_lost = 0;
  NodeRecord foreign = record(a);
  foreign.lends.memory = 8;
  put("nodes/1", json_of(foreign));
  run(5);
  ASSERT_EQ(all<Expelled>(a).size(), 1u);
  EXPECT_THAT(all<Expelled>(a)[0].why.message, HasSubstr("record of node 1 was erased or changed"));
}

TEST_F(RecordChangeTest, SlicesAndTheMarkToLeaveGoOn) {
  auto& a = add();
  take(a, 1);
  registry.apply(drain_commit(registry.records().at("nodes/1"), true));
  change(a, 1);
  EXPECT_THAT(take(a, 1), ElementsAre(Slice{1}));
  EXPECT_TRUE(a.host->enrollment().release_slice(Slice{0}));
  a.host->wake();
  run(2);
  EXPECT_FALSE(has("slices/0"));
  EXPECT_TRUE(a.host->enrollment().members().draining(NodeId{1}));
  registry.apply(drain_commit(registry.records().at("nodes/1"), false));
  run(2);
  EXPECT_FALSE(a.host->enrollment().members().draining(NodeId{1}));
}

TEST_F(RecordChangeTest, ANodeThatLeavesDoesNotComeBackByALateChange) {
  auto &a = add(), &b = add();
  registry.faults = {.requests_late = 1000, .late_us = 3 * kSecondUs};
  for (std::uint64_t memory = 1; memory <= 3; ++memory) {
    change(a, memory);
    run(1);
  }
  registry.faults = {};
  a.host->enrollment().leave({});
  EXPECT_TRUE(a.host->enrollment().change_record(lending(9)));
  a.host->wake();
  run(10);
  EXPECT_FALSE(has("nodes/1"));
  EXPECT_EQ(all<Left>(a).size(), 1u);
  EXPECT_EQ(all<NodeGone>(b).size(), 1u);
}

}  // namespace
}  // namespace vmem::cluster::simulator
