#include "rdma/transport/faulty.hpp"

#include <gmock/gmock.h>

#include <bit>

#include "rdma/transport/fabric_pair.hpp"

namespace vmem::rdma {
namespace {

// Node a, whose messages are subject to faults, connected to b and c.
class FaultyTest : public ::testing::Test {
 protected:
  FaultyTest() {
    auto transport = std::make_unique<FaultyTransport>(fabric.node({NodeId{1}, {}}, a.receiver), clock, 7);
    faulty = transport.get();
    a.start(std::move(transport));
    b.start(fabric.node({NodeId{2}, {}}, b.receiver));
    c.start(fabric.node({NodeId{3}, {}}, c.receiver));
    for (TestNode* node : {&a, &b, &c}) node->receiver.deadline_us = far;
    to_b = *a.transport->connect("node:2", far);
    to_c = *a.transport->connect("node:3", far);
    step(10);
  }
  void step(int times) {
    for (int i = 0; i < times; ++i) {
      for (TestNode* node : {&a, &b, &c}) node->step();
    }
  }
  void send(int count, bool payload) {
    const std::vector<ConstBytes> spans =
        payload ? std::vector<ConstBytes>{a.outgoing(1000, 1)} : std::vector<ConstBytes>{};
    for (int i = 0; i < count; ++i) a.send(to_b, "header", spans, far);
    step(10);
  }

  static constexpr std::uint64_t far = 1000 * kSecondUs;
  ManualClock clock;
  Fabric fabric{clock};
  TestNode a, b, c;
  FaultyTransport* faulty = nullptr;
  PeerId to_b{}, to_c{};
};

TEST_F(FaultyTest, DroppedMessagesDoNotArriveAndTheirSenderDoesNotKnow) {
  faulty->set_faults({.drop = 0.5});
  send(200, false);
  EXPECT_TRUE(a.under_way.empty());
  EXPECT_EQ(a.count<Sent>(), 200u);
  EXPECT_GT(faulty->counts().dropped, 50u);
  EXPECT_EQ(b.count<Message>() + faulty->counts().dropped, 200u);
}

TEST_F(FaultyTest, DuplicatedMessagesArriveTwiceAndEndOnce) {
  faulty->set_faults({.duplicate = 0.5});
  send(200, true);
  EXPECT_TRUE(a.under_way.empty());
  EXPECT_EQ(a.count<Sent>(), 200u);
  EXPECT_GT(faulty->counts().duplicated, 50u);
  EXPECT_EQ(b.count<Message>(), 200u + faulty->counts().duplicated);
}

TEST_F(FaultyTest, DelayedMessagesArriveLater) {
  faulty->set_faults({.delay = 1, .delay_us = 500});
  send(3, true);
  EXPECT_EQ(b.count<Message>(), 0u);
  EXPECT_EQ(a.under_way.size(), 3u);
  clock.advance(500);
  step(10);
  EXPECT_EQ(b.count<Message>(), 3u);
  EXPECT_TRUE(a.under_way.empty());
}

TEST_F(FaultyTest, ACorruptedHeaderDiffersInOneBit) {
  faulty->set_faults({.corrupt_header = 1});
  send(1, false);
  const std::string arrived = text_of(b.all<Message>()[0].second.header);
  int bits = 0;
  for (std::size_t i = 0; i < arrived.size(); ++i)
    bits += std::popcount(static_cast<unsigned char>(arrived[i] ^ "header"[i]));
  EXPECT_EQ(bits, 1);
}

TEST_F(FaultyTest, ACorruptedPayloadDiffersAndTheSendersBytesStay) {
  faulty->set_faults({.corrupt_payload = 1});
  const ConstBytes sent = a.outgoing(1000, 1);
  send(1, true);
  EXPECT_FALSE(TestNode::has_pattern(b.all<Message>()[0].second.payload, 1));
  EXPECT_TRUE(TestNode::has_pattern(sent, 1));
  EXPECT_TRUE(a.under_way.empty());
}

TEST_F(FaultyTest, MisdirectedMessagesArriveElsewhere) {
  faulty->set_faults({.misdirect = 1});
  send(10, false);
  EXPECT_EQ(b.count<Message>(), 0u);
  EXPECT_EQ(c.count<Message>(), 10u);
  EXPECT_TRUE(a.under_way.empty());
}

TEST_F(FaultyTest, ASilencedPeerIsGoneAtTheDeadlineOfWhatIsSentToIt) {
  faulty->silence(to_b);
  a.send(to_b, "x", {}, kSecondUs);
  a.send(to_b, "y", {a.outgoing(100, 1)}, far);
  b.send(b.peer(), "unheard", {}, far);
  b.send(b.peer(), "unheard", {b.outgoing(100, 1)}, far);
  step(10);
  EXPECT_EQ(a.count<Message>(), 0u);
  EXPECT_TRUE(a.receiver.claimed.empty()) << "what was claimed for it is given back";
  EXPECT_EQ(a.under_way.size(), 2u);
  EXPECT_EQ(b.count<Message>(), 0u);
  clock.advance(kSecondUs);
  step(10);
  ASSERT_NE(a.gone(to_b), nullptr);
  EXPECT_EQ(a.gone(to_b)->reason, Reason::timeout);
  EXPECT_TRUE(a.under_way.empty());
  EXPECT_EQ(a.gone(to_c), nullptr);
}

TEST_F(FaultyTest, ACutOutDropsWhatIsSentAndHearsWhatIsSaid) {
  faulty->silence(to_b, Way::out);
  a.send(to_b, "unheard", {}, kSecondUs);
  b.send(b.peer(), "heard", {b.outgoing(100, 1)}, far);
  step(10);
  EXPECT_EQ(b.count<Message>(), 0u);
  EXPECT_EQ(a.count<Message>(), 1u);
  clock.advance(kSecondUs);
  step(10);
  ASSERT_NE(a.gone(to_b), nullptr);
  EXPECT_EQ(a.gone(to_b)->reason, Reason::timeout);
  EXPECT_TRUE(a.under_way.empty());
}

TEST_F(FaultyTest, ACutInDropsWhatIsSaidAndSendsWhatIsSent) {
  faulty->silence(to_b, Way::in);
  a.send(to_b, "heard", {a.outgoing(100, 1)}, kSecondUs);
  b.send(b.peer(), "unheard", {}, far);
  b.send(b.peer(), "unheard", {b.outgoing(100, 1)}, far);
  step(10);
  EXPECT_EQ(b.count<Message>(), 1u);
  EXPECT_EQ(a.count<Message>(), 0u);
  EXPECT_TRUE(a.receiver.claimed.empty()) << "what was claimed for it is given back";
  clock.advance(kSecondUs);
  step(10);
  EXPECT_EQ(a.gone(to_b), nullptr) << "all that was sent has arrived";
}

TEST_F(FaultyTest, RandomCutsEndWithTheConnection) {
  faulty->set_faults({.cut_out = 1});
  a.send(to_b, "unheard", {}, kSecondUs);
  faulty->set_faults({});
  clock.advance(kSecondUs);
  step(10);
  ASSERT_NE(a.gone(to_b), nullptr);
  EXPECT_EQ(faulty->counts().cut, 1u);
  faulty->set_faults({.delay = 1, .delay_us = 500});
  a.send(to_b, "after its end", {}, far);
  step(10);
  EXPECT_TRUE(a.under_way.empty());
  faulty->set_faults({});
  to_b = *a.transport->connect("node:2", far);
  step(10);
  send(1, false);
  EXPECT_EQ(b.count<Message>(), 1u);
}

TEST(FaultyTransport, TheSameSeedMeetsWithTheSameAccidents) {
  const auto run = [](std::uint64_t seed) {
    ManualClock clock;
    Fabric fabric(clock);
    TestNode from, to;
    from.start(std::make_unique<FaultyTransport>(fabric.node({NodeId{1}, {}}, from.receiver), clock, seed,
                                                 Faults{.drop = 0.3, .duplicate = 0.3, .corrupt_header = 0.3}));
    to.start(fabric.node({NodeId{2}, {}}, to.receiver));
    const PeerId peer = *from.transport->connect("node:2", kSecondUs);
    std::vector<std::string> arrived;
    to.on_message = [&](const Message& message) { arrived.push_back(text_of(message.header)); };
    for (int i = 0; i < 100; ++i) from.send(peer, std::to_string(i), {}, kSecondUs);
    for (int i = 0; i < 10; ++i) {
      from.step();
      to.step();
    }
    return arrived;
  };
  EXPECT_EQ(run(1), run(1));
  EXPECT_NE(run(1), run(2));
}

}  // namespace
}  // namespace vmem::rdma
