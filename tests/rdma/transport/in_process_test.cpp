#include "rdma/transport/in_process/in_process.hpp"

#include <gmock/gmock.h>

#include "rdma/transport/fabric_pair.hpp"
#include "rdma/transport/progress_thread.hpp"
#include "rdma/transport/transport_conformance.hpp"

namespace vmem::rdma {
namespace {

struct FaultlessPair : FabricPair {
  FaultlessPair() {
    for (TestNode* node : {&a, &b}) {
      node->stop();
      const NodeIdentity self = node == &a ? identity_a() : identity_b();
      node->start(std::make_unique<FaultyTransport>(fabric.node(self, node->receiver), clock, 1));
    }
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, TransportConformance, FabricPair);
INSTANTIATE_TYPED_TEST_SUITE_P(WithoutFaults, TransportConformance, FaultlessPair);

class FabricTest : public ::testing::Test {
 protected:
  FabricTest() {
    pair.a.receiver.deadline_us = pair.b.receiver.deadline_us = far;
    peer = *pair.a.transport->connect(pair.b.transport->address(), far);
    step(10);
    EXPECT_TRUE(pair.a.connected() && pair.b.connected());
  }
  void step(int times) {
    for (int i = 0; i < times; ++i) {
      pair.step(pair.a);
      pair.step(pair.b);
    }
  }
  const std::uint64_t far = 1000 * kSecondUs;
  FabricPair pair;
  PeerId peer{};
};

TEST_F(FabricTest, AMessageArrivesAfterTheLatencyAndNotBefore) {
  pair.fabric.set_latency(500);
  pair.a.send(peer, "slow", {}, far);
  pair.pass(499);
  pair.b.step();
  EXPECT_EQ(pair.b.count<Message>(), 0u);
  pair.pass(1);
  pair.b.step();
  EXPECT_EQ(pair.b.count<Message>(), 1u);
}

TEST_F(FabricTest, APartitionTellsNobodyAndDeadlinesEndWhatItCutOff) {
  pair.fabric.set_partition(NodeId{1}, NodeId{2}, true);
  pair.a.send(peer, "cut off", {pair.a.outgoing(100, 1)}, pair.now_us() + kSecondUs);
  step(10);
  EXPECT_EQ(pair.a.gone(peer), nullptr);
  pair.pass(kSecondUs);
  step(10);
  ASSERT_NE(pair.a.gone(peer), nullptr);
  EXPECT_EQ(pair.a.gone(peer)->reason, Reason::timeout);
  EXPECT_EQ(pair.b.gone(pair.b.peer()), nullptr) << "the other side cannot know";
}

TEST_F(FabricTest, ACutOfOneWayLetsTheOtherPass) {
  pair.fabric.set_one_way_cut(NodeId{1}, NodeId{2}, true);
  pair.a.send(peer, "cut off", {}, far);
  pair.b.send(pair.b.peer(), "heard", {}, far);
  step(10);
  EXPECT_EQ(pair.b.count<Message>(), 0u);
  EXPECT_EQ(pair.a.count<Message>(), 1u);
  // What comes in is heard, and what would accept it is not.
  const PeerId half = *pair.b.transport->connect(pair.a.transport->address(), pair.now_us() + kSecondUs);
  step(10);
  EXPECT_EQ(pair.a.count<Connected>(), 2u);
  EXPECT_EQ(pair.b.count<Connected>(), 1u);
  pair.pass(kSecondUs);
  step(10);
  ASSERT_NE(pair.b.gone(half), nullptr);
  EXPECT_EQ(pair.b.gone(half)->reason, Reason::timeout);
  pair.fabric.set_one_way_cut(NodeId{1}, NodeId{2}, false);
  pair.a.send(peer, "heard", {}, far);
  step(10);
  EXPECT_EQ(pair.b.count<Message>(), 1u);
}

TEST_F(FabricTest, WhatWasSentToAnEarlierProcessOfANodeReachesNone) {
  pair.fabric.set_one_way_cut(NodeId{2}, NodeId{1}, true);
  pair.b.stop();  // its farewell is not heard
  pair.fabric.set_one_way_cut(NodeId{2}, NodeId{1}, false);
  pair.b.events.clear();
  pair.b.start(pair.fabric.node({NodeId{2}, Incarnation{23}}, pair.b.receiver));
  const PeerId now = *pair.a.transport->connect("node:2", far);
  step(10);
  pair.a.send(peer, "for the earlier one", {}, far);
  pair.a.transport->close(peer);
  pair.a.send(now, "for this one", {}, far);
  step(10);
  ASSERT_EQ(pair.b.count<Message>(), 1u);
  EXPECT_EQ(text_of(pair.b.all<Message>()[0].second.header), "for this one");
  EXPECT_EQ(pair.b.count<Gone>(), 0u);
}

TEST_F(FabricTest, DeadlinesAreOnTheNodesOwnClock) {
  ManualClock own;
  TestNode c;
  c.start(pair.fabric.node({NodeId{3}, {}}, c.receiver, own));
  const PeerId there = *c.transport->connect("node:1", kSecondUs);
  pair.fabric.set_partition(NodeId{1}, NodeId{3}, true);
  pair.pass(2 * kSecondUs);
  c.step();
  EXPECT_EQ(c.gone(there), nullptr);
  own.advance(kSecondUs);
  c.step();
  ASSERT_NE(c.gone(there), nullptr);
  EXPECT_EQ(c.gone(there)->reason, Reason::timeout);
  c.stop();
}

TEST_F(FabricTest, AKilledNodeIsReportedAndItsPayloadsAreGivenBack) {
  pair.a.send(peer, "half", {pair.a.outgoing(100, 1)}, far);
  pair.step(pair.b);  // announced and claimed
  ASSERT_EQ(pair.b.receiver.claimed.size(), 1u);
  pair.fabric.kill(NodeId{1});
  step(10);
  ASSERT_NE(pair.b.gone(pair.b.peer()), nullptr);
  EXPECT_EQ(pair.b.gone(pair.b.peer())->reason, Reason::lost);
  EXPECT_TRUE(pair.b.receiver.claimed.empty());
  EXPECT_EQ(pair.a.under_way.size(), 1u) << "a dead node learns nothing";
}

TEST_F(FabricTest, ASilentNodeTakesUpWhereItWasWhenItSpeaksAgain) {
  pair.fabric.set_silence(NodeId{2}, true);
  pair.a.send(peer, "wait", {pair.a.outgoing(100, 4)}, far);
  step(10);
  EXPECT_EQ(pair.b.count<Message>(), 0u);
  pair.fabric.set_silence(NodeId{2}, false);
  step(10);
  ASSERT_EQ(pair.b.count<Message>(), 1u);
  EXPECT_TRUE(pair.a.under_way.empty());
}

TEST_F(FabricTest, AThreadProgressesWhatOthersPost) {
  pair.fabric.set_latency(0);
  const ProgressThread thread_a(*pair.a.transport), thread_b(*pair.b.transport);
  for (int i = 0; i < 100; ++i) {
    pair.a.send(peer, std::to_string(i), {pair.a.outgoing(1000, 1)}, far);
    while (!pair.a.under_way.empty()) {
      ASSERT_TRUE(pair.a.transport->wait(10 * kSecondUs));
      pair.a.take();
    }
  }
  pair.b.take();
  EXPECT_EQ(pair.b.count<Message>(), 100u);
}

}  // namespace
}  // namespace vmem::rdma
