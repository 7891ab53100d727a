#include "cluster/enrollment/enrollment.hpp"

#include <gmock/gmock.h>

#include <vector>

#include "cluster/enrollment/enrollment_fixture.hpp"

namespace vmem::cluster::simulator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(EnrollmentTest, NodesGetTheNextSerialsAsIdsAndSeeEachOther) {
  auto &a = add(), &b = add();
  run(2);
  EXPECT_EQ(id(a), NodeId{1});
  EXPECT_EQ(id(b), NodeId{2});
  EXPECT_FALSE(a.host->enrollment().fenced());
  ASSERT_TRUE(a.host->enrollment().members().nodes().contains(NodeId{2}));
  EXPECT_EQ(a.host->enrollment().members().nodes().at(NodeId{2}).record.labels.at("host"), "b");
  EXPECT_EQ(a.host->enrollment().members().view().self.id, NodeId{1});
  const auto serial = ask<SerialTaken>(b, [](Enrollment& each) { return each.take_serial(); });
  EXPECT_EQ(serial.serial.value_or(0), 3u) << "regions and nodes share one counter";
}

TEST_F(EnrollmentTest, ANodeWithOtherParametersIsRefused) {
  add();
  const auto why = [&](auto change) {
    ClusterParameters with = parameters();
    change(with);
    const auto refused = all<Refused>(add(with));
    return refused.empty() ? Error{} : refused.front().why;
  };
  EXPECT_EQ(why([](auto& with) { with.base *= 2; }).status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(why([](auto& with) { with.base *= 2; }).message,
              HasSubstr("base address is 0x200000000000, and the cluster's is 0x100000000000: set the option base"));
  EXPECT_THAT(why([](auto& with) { with.space_bytes *= 2; }).message,
              HasSubstr("address space is 512GiB, and the cluster's is 256GiB: set the option space"));
  EXPECT_THAT(why([](auto& with) { with.page_rule = "other"; }).message, HasSubstr("'other', and the cluster's is"));
}

class Versions : public EnrollmentTest {
 protected:
  Node& start_serving(std::uint32_t least) {
    return start(parameters(), [least](NodeRecord& record) {
      record.versions = {.least = least, .most = least + 1};
      record.addresses = {"10.0.0.1:7000"};
    });
  }
  // "": it is a member.
  std::string why_not(std::uint32_t least) {
    Node& node = start_serving(least);
    run(2);
    const auto refused = all<Refused>(node);
    if (!refused.empty()) return refused.front().why.message;
    EXPECT_NE(id(node), NodeId{});
    return "";
  }
};

TEST_F(Versions, AClusterIsUpgradedNodeByNodeAsOftenAsOneLikes) {
  for (std::uint32_t least = 2; least < 6; ++least) {
    const std::size_t earlier = nodes.size();
    EXPECT_EQ(why_not(least), "");
    EXPECT_EQ(why_not(least), "");
    for (std::size_t i = earlier - std::min<std::size_t>(earlier, 2); i < earlier; ++i) {
      nodes[i]->host->enrollment().leave({});
      nodes[i]->host->wake();
    }
    run(2);
  }
}

TEST_F(Versions, ANodeThatHasNoneInCommonWithAMemberIsRefused) {
  EXPECT_EQ(why_not(2), "");
  EXPECT_EQ(why_not(3), "");
  EXPECT_THAT(why_not(4), HasSubstr("versions 4 to 5, and node 1, a program at 10.0.0.1:7000, 2 to 3: upgrade that"));
  EXPECT_THAT(why_not(0), HasSubstr("versions 0 to 1, and node 1"));
  EXPECT_THAT(why_not(1),
              HasSubstr("versions 1 to 2, and node 2, a program at 10.0.0.1:7000, 3 to 4: install a later"));
}

// Each has one in common with the member, and none with the other.
TEST_F(Versions, OfTwoThatJoinAtOnceTheLaterOneIsRefused) {
  for (const std::uint64_t delay_us : {0u, 500u, 5'000u, 50'000u}) {
    Node& member = start_serving(3);
    run(2);
    Node& older = start_serving(2);
    queue.run_until(queue.now_us() + delay_us);
    Node& newer = start_serving(4);
    run(5);
    EXPECT_EQ(all<Refused>(older).size() + all<Refused>(newer).size(), 1u) << delay_us;
    for (Node* each : {&member, &older, &newer}) each->host->crash();
    run(200);
  }
}

TEST_F(EnrollmentTest, ADamagedRecordOfParametersIsNamed) {
  put("params", "{\"format\":1,\"base\":\"x\"}");
  EXPECT_THAT(all<Refused>(add()).at(0).why.message, HasSubstr("field 'base' of the registry's record 'params' is no"));
  put("params", "{\"format\":2}");
  EXPECT_THAT(all<Refused>(add()).at(0).why.message, HasSubstr("is 2, and this version of vmem reads format 1"));
}

TEST_F(EnrollmentTest, ADamagedCounterIsReportedAndEnrollingGoesOnOnceItIsRepaired) {
  put("counters/serial", "07");
  auto& a = add();
  run(5);
  ASSERT_TRUE(a.host->enrollment().trouble());
  EXPECT_THAT(a.host->enrollment().trouble()->message, HasSubstr("'counters/serial' is '07'"));
  put("counters/serial", "41");
  run(5);
  EXPECT_EQ(id(a), NodeId{42});
  EXPECT_FALSE(a.host->enrollment().trouble());
}

TEST_F(EnrollmentTest, ARegistryThatIsAwayForAMinuteGoesUnnoticed) {
  auto &a = add(), &b = add();
  for (int offset = 0; offset < 20; ++offset) {
    run(20 + std::uint64_t(offset));
    registry.faults.away = true;
    run(60);
    registry.faults.away = false;
  }
  run(5);
  for (auto* node : {&a, &b}) {
    EXPECT_THAT(all<Fenced>(*node), IsEmpty());
    EXPECT_THAT(all<NodeGone>(*node), IsEmpty());
  }
}

TEST_F(EnrollmentTest, WhoCannotRenewIsFencedAfter83SecondsAndNobodyIsRemovedMeanwhile) {
  auto &a = add(), &b = add();
  run(60);
  registry.faults.away = true;
  run(60);
  EXPECT_FALSE(a.host->enrollment().fenced());
  run(24);
  EXPECT_TRUE(a.host->enrollment().fenced());
  EXPECT_TRUE(b.host->enrollment().fenced());
  EXPECT_EQ(all<Fenced>(a).size(), 1u);
  EXPECT_EQ(a.host->enrollment().members().nodes().size(), 1u);
  EXPECT_EQ(a.host->enrollment().stage(), Enrollment::Stage::enrolled);
}

TEST_F(EnrollmentTest, AFenceEndsIfLeaseAndRecordAreStillThere) {
  auto& a = add();
  run(60);
  a.host->stop();
  run(89);
  EXPECT_TRUE(a.host->enrollment().fenced()) << "without a step";
  // Renewed by a request that was under way, say: the lease outlives the fence.
  const LeaseId lease = registry.records().at("nodes/1").lease;
  registry.apply(RenewLease{lease});
  run(5);
  a.host->go_on();
  run(3);
  EXPECT_FALSE(a.host->enrollment().fenced());
  EXPECT_EQ(id(a), NodeId{1});
  EXPECT_EQ(all<Fenced>(a).size(), 1u);
  EXPECT_EQ(all<FenceEnded>(a).size(), 1u);
}

// Of several nodes, because either of the answers to a renewal and to a reading may come first.
TEST_F(EnrollmentTest, AFenceDoesNotEndIfTheRecordWasErasedMeanwhile) {
  for (int i = 0; i < 16; ++i) add();
  run(60);
  for (const auto& node : nodes) node->host->stop();
  run(70);
  for (const auto& node : nodes) registry.apply(RenewLease{registry.records().at(node_key(id(*node))).lease});
  run(20);
  for (const auto& node : nodes) put(node_key(id(*node)), std::nullopt);
  for (const auto& node : nodes) node->host->go_on();
  run(10);
  for (const auto& node : nodes) {
    EXPECT_THAT(all<FenceEnded>(*node), IsEmpty());
    EXPECT_EQ(all<Expelled>(*node).size(), 1u);
    EXPECT_GT(id(*node), NodeId{16});
  }
}

TEST_F(EnrollmentTest, WhoIsExpelledLosesEverythingAndEnrollsAgain) {
  auto &a = add(), &b = add();
  EXPECT_THAT(take(a, 2), ElementsAre(Slice{0}, Slice{1}));
  a.host->stop();
  run(95);
  EXPECT_EQ(all<NodeGone>(b).size(), 1u);
  EXPECT_TRUE(has("slices/0")) << "a slice outlives its node";
  EXPECT_THAT(take(b, 1), ElementsAre(Slice{2}));
  a.host->go_on();
  run(3);
  EXPECT_EQ(id(a), NodeId{3});
  EXPECT_EQ(all<Fenced>(a).size(), 1u);
  ASSERT_EQ(all<Expelled>(a).size(), 1u);
  EXPECT_EQ(all<Expelled>(a)[0].former, NodeId{1});
  EXPECT_THAT(all<Expelled>(a)[0].slices, ElementsAre(Slice{0}, Slice{1}));
  EXPECT_THAT(a.host->enrollment().slices(), IsEmpty());
  const auto over = ask<SlicesTaken>(a, [](Enrollment& each) { return each.take_over_slice(Slice{1}, NodeId{1}); });
  EXPECT_TRUE(over.slices);
  EXPECT_THAT(a.host->enrollment().slices(), ElementsAre(Slice{1}));
}

TEST_F(EnrollmentTest, ARecordThatWasErasedEndsTheMembership) {
  auto& a = add();
  put("nodes/1", std::nullopt);
  run(3);
  ASSERT_EQ(all<Expelled>(a).size(), 1u);
  EXPECT_THAT(all<Expelled>(a)[0].why.message, HasSubstr("record of node 1 was erased"));
  EXPECT_EQ(id(a), NodeId{2});
}

TEST_F(EnrollmentTest, WhoIsNotTakenInAgainSaysSoAndWhatItIsAskedForFailsWithTheReason) {
  auto& a = add();
  run(1);
  put("params", json_of([] {
        ClusterParameters other = parameters();
        other.base *= 2;
        return other;
      }()));
  put("nodes/1", std::nullopt);
  const auto slices = ask<SlicesTaken>(a, [](Enrollment& each) { return each.take_slices(1); }, 5);
  ASSERT_EQ(all<Refused>(a).size(), 1u);
  EXPECT_THAT(all<Refused>(a)[0].why.message,
              HasSubstr("is no longer a member of the cluster, which does not take it in again"));
  EXPECT_THAT(all<Refused>(a)[0].why.message, HasSubstr("and the cluster's is 0x200000000000"));
  EXPECT_EQ(slices.slices.error().status, VMEM_ERROR_NOT_INITIALIZED);
  EXPECT_EQ(slices.slices.error().message, all<Refused>(a)[0].why.message);
}

TEST_F(EnrollmentTest, WhatDelaysTheNextEnrollmentIsTheReasonWhyNoSlicesAreTaken) {
  auto& a = add();
  put("counters/serial", "07");
  put("nodes/1", std::nullopt);
  run(3);
  ASSERT_TRUE(a.host->enrollment().trouble());
  const auto slices = ask<SlicesTaken>(a, [](Enrollment& each) { return each.take_slices(1); }, 16);
  EXPECT_EQ(slices.slices.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(slices.slices.error().message, HasSubstr("no member of the cluster at present: "));
  EXPECT_THAT(slices.slices.error().message, HasSubstr("'counters/serial' is '07'"));
}

TEST_F(EnrollmentTest, ACommitWithoutAnAnswerIsLookedUp) {
  auto& a = add();
  registry.faults.replies_lost = 500;
  for (int i = 0; i < 4; ++i) {
    const auto taken = ask<SlicesTaken>(a, [](Enrollment& each) { return each.take_slices(1); }, 15);
    EXPECT_TRUE(taken.slices) << taken.slices.error().message;
  }
  EXPECT_EQ(a.host->enrollment().slices().size(), 4u) << "none was lost on the way";
  for (int i = 0; i < 5; ++i) add();
  run(60);
  std::size_t records = 0;
  for (const auto& [key, record] : registry.records()) records += key.starts_with("nodes/");
  EXPECT_EQ(records, 6u) << "each node has one id";
}

TEST_F(EnrollmentTest, ADamagedNodeRecordDisturbsNobody) {
  auto &a = add(), &b = add();
  run(2);
  put("nodes/9", "{\"format\":1}");
  put("nodes/x", "");
  run(2);
  const auto& known = a.host->enrollment().members().nodes();
  EXPECT_EQ(known.size(), 2u);
  ASSERT_TRUE(known.contains(NodeId{9})) << "its key exists, so its membership is not over";
  EXPECT_EQ(known.at(NodeId{9}).record, NodeRecord{});
  run(5);
  EXPECT_EQ(all<NodeAppeared>(a).size(), 2u);
  put("nodes/9", json_of(NodeRecord{.addresses = {"i:7000"}}));
  run(2);
  EXPECT_EQ(known.at(NodeId{9}).record.addresses, std::vector<std::string>{"i:7000"}) << "once it is repaired";
  EXPECT_EQ(all<NodeChanged>(a).size(), 1u);
  put("nodes/9", std::nullopt);
  run(2);
  EXPECT_EQ(all<NodeGone>(a).size(), 1u) << "once its key is gone";
  // A damaged record of a node that is known is no proof of its end.
  put("nodes/2", "damaged");
  queue.run_until(queue.now_us() + 10'000);
  nodes[0]->host->enrollment().poke(registry.state().revision());
  nodes[0]->host->wake();
  queue.run_until(queue.now_us() + 60'000);
  EXPECT_TRUE(a.host->enrollment().members().nodes().contains(NodeId{2}));
  EXPECT_EQ(all<NodeGone>(a).size(), 1u);
  run(2);
  EXPECT_EQ(id(b), NodeId{3}) << "its own record does not say so any more";
}

TEST_F(EnrollmentTest, APokeReadsAtOnceAndOnceOnly) {
  auto& a = add();
  run(3);
  queue.run_until(queue.now_us() + 300'000);
  put("nodes/9", json_of(NodeRecord{}));
  a.host->enrollment().poke(registry.state().revision());
  a.host->wake();
  queue.run_until(queue.now_us() + 60'000);
  EXPECT_TRUE(a.host->enrollment().members().nodes().contains(NodeId{9}));
  const std::uint64_t before = queue.events();
  a.host->enrollment().poke(Revision{1'000'000});
  a.host->wake();
  queue.run_until(queue.now_us() + 900'000);
  EXPECT_LT(queue.events() - before, 20u) << "a revision that never was causes one reading";
}

TEST_F(EnrollmentTest, ADrainMarkIsSeenByAllAndGoesWithTheNode) {
  auto &a = add(), &b = add();
  registry.apply(drain_commit(registry.records().at("nodes/2"), true));
  run(2);
  for (auto* node : {&a, &b}) EXPECT_TRUE(node->host->enrollment().members().draining(NodeId{2}));
  registry.apply(drain_commit(registry.records().at("nodes/2"), false));
  run(2);
  EXPECT_FALSE(a.host->enrollment().members().draining(NodeId{2}));
  EXPECT_EQ(all<DrainChanged>(a).size(), 2u);
  registry.apply(drain_commit(registry.records().at("nodes/2"), true));
  b.host->crash();
  run(95);
  EXPECT_FALSE(has("drain/2"));
  EXPECT_FALSE(a.host->enrollment().members().draining(NodeId{2}));
}

TEST_F(EnrollmentTest, AnOrderToDrainIsSeenWithItsValues) {
  auto &a = add(), &b = add();
  const DrainOrder slow{.rate = 1000, .exit = false}, fast{.rate = 9000, .exit = true};
  registry.apply(drain_commit(registry.records().at("nodes/2"), slow));
  run(2);
  for (auto* node : {&a, &b}) EXPECT_EQ(node->host->enrollment().members().drain(NodeId{2}), slow);
  registry.apply(drain_commit(registry.records().at("nodes/2"), fast));
  run(2);
  EXPECT_EQ(a.host->enrollment().members().drain(NodeId{2}), fast);
  EXPECT_EQ(all<DrainChanged>(a).size(), 2u) << "another rate is a change";
}

TEST_F(EnrollmentTest, TheRegistrySaysWhatANodeHoldsUntilItIsGone) {
  auto &a = add(), &b = add();
  const auto holds = [&](std::uint64_t id) {
    const auto found = registry.records().find(holds_key(NodeId{id}));
    if (found == registry.records().end()) return std::uint64_t{0};
    return parse_holdings(found->first, found->second.value).value().memory;
  };
  run(2);
  EXPECT_FALSE(has("holds/2")) << "it has said nothing";
  b.host->enrollment().tell_holdings({.memory = 5});
  b.host->wake();
  run(1);
  EXPECT_EQ(holds(2), 5u);
  b.host->enrollment().tell_holdings({.memory = 3});
  b.host->wake();
  run(2);
  EXPECT_EQ(holds(2), 3u);
  put("holds/2", json_of(Holdings{.memory = 5}));  // as a commit that was delayed
  run(12);
  EXPECT_EQ(holds(2), 3u);
  put("holds/2", json_of(Holdings{.memory = 7}));
  for (std::uint64_t sent = 1; sent <= 5; ++sent) {
    b.host->enrollment().tell_holdings({.memory = 3, .hbm_direct = sent});
    b.host->wake();
    run(1);
    EXPECT_EQ(holds(2), 7u) << "counts alone are not written each second";
  }
  run(12);
  EXPECT_EQ(holds(2), 3u);
  b.host->crash();
  run(95);
  EXPECT_FALSE(has("holds/2"));
  EXPECT_EQ(id(a), NodeId{1});
}

TEST_F(EnrollmentTest, LeavingReleasesWhatIsEmptyAndEndsTheLease) {
  auto &a = add(), &b = add();
  take(a, 3);
  a.host->enrollment().leave({Slice{0}, Slice{2}});
  a.host->wake();
  run(2);
  EXPECT_FALSE(a.host->running());
  ASSERT_EQ(all<Left>(a).size(), 1u);
  EXPECT_TRUE(all<Left>(a)[0].status);
  EXPECT_FALSE(has("nodes/1") || has("slices/0") || has("slices/2"));
  EXPECT_TRUE(has("slices/1")) << "regions live there";
  EXPECT_EQ(all<NodeGone>(b).size(), 1u);
}

TEST_F(EnrollmentTest, LeavingEndsByItsDeadlineWhenTheRegistryIsAway) {
  auto& a = add();
  take(a, 1);
  registry.faults.away = true;
  const Ticket waiting = a.host->enrollment().take_serial();
  a.host->waits_for(waiting);
  a.host->enrollment().leave({Slice{0}});
  a.host->wake();
  run(11);
  ASSERT_EQ(all<Left>(a).size(), 1u);
  EXPECT_EQ(all<Left>(a)[0].status.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_EQ(all<SerialTaken>(a).at(0).serial.error().status, VMEM_ERROR_NOT_INITIALIZED) << "what waits is told";
}

TEST_F(EnrollmentTest, RequestsEndByTheirDeadlineWhenTheRegistryIsAway) {
  auto& a = add();
  registry.faults.away = true;
  const auto serial = ask<SerialTaken>(a, [](Enrollment& each) { return each.take_serial(); }, 16);
  EXPECT_EQ(serial.serial.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(serial.serial.error().message, HasSubstr("within 15s: no answer came"));
  const auto slices = ask<SlicesTaken>(a, [](Enrollment& each) { return each.take_slices(1); }, 16);
  EXPECT_EQ(slices.slices.error().status, VMEM_ERROR_TIMEOUT);
  const auto many = ask<SlicesTaken>(a, [](Enrollment& each) { return each.take_slices(1000); });
  EXPECT_EQ(many.slices.error().status, VMEM_ERROR_INVALID_VALUE);
}

TEST_F(EnrollmentTest, OnlyListedNodesAreHeardAndASuspectStays) {
  auto& a = add();
  add();
  run(2);
  RegistryMembers& members = a.host->enrollment().members();
  EXPECT_THAT(members.heard("b:7000", {NodeId{5}, Incarnation{1}}).error().message,
              HasSubstr("node 5 is not among the cluster's nodes"));
  EXPECT_THAT(members.heard("b:7000", {NodeId{2}, Incarnation{4}}).error().message, HasSubstr("has incarnation 1"));
  ASSERT_TRUE(members.heard("b:7000", {NodeId{2}, Incarnation{1}}));
  for (int i = 0; i < 10; ++i) members.missed(NodeId{2});
  run(5);
  ASSERT_EQ(members.view().members.size(), 1u);
  EXPECT_EQ(members.view().members[0].standing, Standing::suspect);
}

TEST_F(EnrollmentTest, AnAddressIsThatOfTheLatestNodeThere) {
  auto& a = add();
  auto& b = add();
  b.host->crash();
  b.host->start();
  run(3);
  const View& view = a.host->enrollment().members().view();
  ASSERT_EQ(view.members.size(), 2u) << "the dead process's lease has not ended yet";
  for (const Member& member : view.members) EXPECT_EQ(member.address, member.node.id == NodeId{3} ? "b:7000" : "");
  run(95);
  EXPECT_EQ(a.host->enrollment().members().view().members.size(), 1u);
}

TEST(EnrollmentConfig, AFenceThatComesTooLateIsRefused) {
  EXPECT_TRUE(EnrollmentConfig{}.check());
  EXPECT_TRUE(EnrollmentConfig::of_lease(6).check());
  EXPECT_EQ(EnrollmentConfig{}.fenced_after_us(), 83'300'000u);
  EnrollmentConfig late;
  late.fence_us = 91 * kSecondUs;
  EXPECT_THAT(late.check().error().message, HasSubstr("before the end of the lease"));
}

}  // namespace
}  // namespace vmem::cluster::simulator
