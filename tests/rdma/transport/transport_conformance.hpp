// Requirements on every Transport. An implementation instantiates the suite in three lines:
//   struct MyPair { ... };
//   INSTANTIATE_TYPED_TEST_SUITE_P(My, TransportConformance, MyPair);
// A pair has a and b (unconnected TestNodes; a can connect to b), now_us(), pass(us) and
// step(node), which progresses one node and delivers what it sent. A node that is not stepped is as
// silent as a stopped process.
#pragma once

#include <chrono>

#include "rdma/transport/test_node.hpp"

namespace vmem::rdma {

template <class Pair>
class TransportConformance : public ::testing::Test {
 protected:
  TransportConformance() { a.receiver.deadline_us = b.receiver.deadline_us = pair.now_us() + 3600 * kSecondUs; }

  std::uint64_t in(std::uint64_t us) { return pair.now_us() + us; }
  std::uint64_t later() { return in(3600 * kSecondUs); }

  // Steps both until `done`. The real-time limit only ends a failing test.
  template <class Done>
  [[nodiscard]] bool until(Done done, bool step_b = true, bool step_a = true) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      if (step_a) pair.step(a);
      if (step_b) pair.step(b);
    }
    return true;
  }
  void step_both(int times) {
    for (int i = 0; i < times; ++i) {
      pair.step(a);
      pair.step(b);
    }
  }
  void connect() {
    const auto peer = a.transport->connect(b.transport->address(), later());
    ASSERT_TRUE(peer) << peer.error().message;
    ASSERT_TRUE(until([&] { return a.connected() && b.connected(); }));
    EXPECT_EQ(a.peer(), *peer);
  }
  bool quiet() const { return a.under_way.empty() && b.under_way.empty(); }
  std::vector<std::pair<PeerId, Message>> messages() const { return b.template all<Message>(); }

  Pair pair;
  TestNode& a = pair.a;
  TestNode& b = pair.b;
};
TYPED_TEST_SUITE_P(TransportConformance);

TYPED_TEST_P(TransportConformance, BothSidesLearnWhomTheyAreConnectedTo) {
  this->connect();
  const Connected to_b = this->a.template all<Connected>().front().second;
  const Connected to_a = this->b.template all<Connected>().front().second;
  EXPECT_EQ(to_b.node, this->pair.identity_b());
  EXPECT_EQ(to_a.node, this->pair.identity_a());
  EXPECT_TRUE(to_b.by_us);
  EXPECT_FALSE(to_a.by_us);
  EXPECT_THAT(to_b.path, ::testing::HasSubstr(this->pair.path()));
  EXPECT_THAT(to_a.path, ::testing::HasSubstr(this->pair.path()));
}

TYPED_TEST_P(TransportConformance, AMessageArrivesAsItWasSent) {
  this->connect();
  this->a.send(this->a.peer(), "ping", {}, this->later());
  this->b.send(this->b.peer(), std::string(kMostHeaderBytes, 'x'), {}, this->later());
  ASSERT_TRUE(this->until([&] {
    return this->quiet() && this->b.template count<Message>() == 1 && this->a.template count<Message>() == 1;
  }));
  EXPECT_EQ(text_of(this->b.template all<Message>()[0].second.header), "ping");
  EXPECT_EQ(text_of(this->a.template all<Message>()[0].second.header), std::string(kMostHeaderBytes, 'x'));
  EXPECT_EQ(this->b.template all<Message>()[0].first, this->b.peer());
}

TYPED_TEST_P(TransportConformance, APayloadOfAnySizeLandsWhereItWasClaimed) {
  this->connect();
  unsigned seed = 0;
  for (const std::size_t bytes : {1ul, 4095ul, 32767ul, 32768ul, 65537ul, 2ul << 20, (5ul << 20) + 3}) {
    this->b.events.erase(this->b.events.begin() + 1, this->b.events.end());
    const auto header = "put " + std::to_string(bytes);
    this->a.send(this->a.peer(), header, {this->a.outgoing(bytes, ++seed)}, this->later());
    ASSERT_TRUE(this->until([&] { return this->quiet() && this->messages().size() == 1; })) << bytes;
    const Message message = this->messages()[0].second;
    EXPECT_EQ(text_of(message.header), header);
    EXPECT_EQ(this->b.receiver.announced.back(), header);
    ASSERT_EQ(message.payload.size(), bytes);
    EXPECT_GE(message.payload.data(), this->b.receiver.memory.data());
    EXPECT_TRUE(TestNode::has_pattern(message.payload, seed)) << bytes;
  }
}

TYPED_TEST_P(TransportConformance, SpansOfAPayloadArriveAsOne) {
  this->connect();
  for (const std::size_t bytes : {1000ul, 1ul << 20}) {
    const Bytes whole = this->a.outgoing(bytes, 9);
    std::vector<ConstBytes> spans;
    for (std::size_t i = 0; i < 9; ++i) spans.push_back(whole.subspan(i * (bytes / 10), bytes / 10));
    spans.push_back(whole.subspan(9 * (bytes / 10)));
    this->a.send(this->a.peer(), "spans", spans, this->later());
    ASSERT_TRUE(
        this->until([&] { return this->quiet() && this->b.receiver.claimed.empty() && !this->messages().empty(); }));
    EXPECT_TRUE(TestNode::has_pattern(this->messages().back().second.payload, 9));
    EXPECT_EQ(this->messages().back().second.payload.size(), bytes);
    this->b.events.erase(this->b.events.begin() + 1, this->b.events.end());
  }
}

TYPED_TEST_P(TransportConformance, ManyMessagesInBothDirectionsEachArriveOnce) {
  this->connect();
  constexpr int kMessages = 400;
  constexpr std::size_t kLarge = 300 << 10;
  std::map<std::string, int> at_a, at_b;
  std::size_t wrong = 0;
  const auto counting = [&](std::map<std::string, int>& counts) {
    return [&](const Message& message) {
      ++counts[text_of(message.header)];
      if (!message.payload.empty() && !TestNode::has_pattern(message.payload, 77)) ++wrong;
    };
  };
  this->a.on_message = counting(at_a);
  this->b.on_message = counting(at_b);
  const Bytes from_a = this->a.outgoing(kLarge, 77), from_b = this->b.outgoing(kLarge, 77);
  for (int i = 0; i < kMessages; ++i) {
    const bool large = i % 4 == 0;
    this->a.send(this->a.peer(), std::to_string(i), large ? std::vector<ConstBytes>{from_a} : std::vector<ConstBytes>{},
                 this->later());
    this->b.send(this->b.peer(), std::to_string(i), large ? std::vector<ConstBytes>{from_b} : std::vector<ConstBytes>{},
                 this->later());
  }
  ASSERT_TRUE(this->until([&] { return this->quiet() && at_a.size() == kMessages && at_b.size() == kMessages; }));
  this->step_both(100);
  for (const auto& counts : {at_a, at_b}) {
    for (const auto& [header, count] : counts) EXPECT_EQ(count, 1) << header;
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_TRUE(this->a.receiver.claimed.empty() && this->b.receiver.claimed.empty());
}

TYPED_TEST_P(TransportConformance, ARefusedPayloadIsDroppedAndTheNextOneArrives) {
  this->connect();
  for (const std::size_t bytes : {100ul, 2ul << 20}) {
    this->b.receiver.refuse = true;
    this->a.send(this->a.peer(), "unwanted", {this->a.outgoing(bytes, 1)}, this->later());
    ASSERT_TRUE(this->until([&] {
      const auto& announced = this->b.receiver.announced;
      return this->quiet() && !announced.empty() && announced.back() == "unwanted";
    }));
    EXPECT_EQ(this->messages().size(), 0u);
    this->b.receiver.refuse = false;
    this->a.send(this->a.peer(), "wanted", {this->a.outgoing(bytes, 2)}, this->later());
    ASSERT_TRUE(this->until([&] { return this->quiet() && this->messages().size() == 1; }));
    EXPECT_TRUE(TestNode::has_pattern(this->messages()[0].second.payload, 2));
    this->b.events.erase(this->b.events.begin() + 1, this->b.events.end());
  }
  EXPECT_EQ(this->a.gone(this->a.peer()), nullptr);
}

TYPED_TEST_P(TransportConformance, ASendToASilentPeerEndsAtItsDeadlineAndSoDoesTheRest) {
  this->connect();
  const PeerId peer = this->a.peer();
  // More than socket buffers hold.
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const SendId first = this->a.send(peer, "first", {this->a.outgoing(kBytes, 1)}, this->in(kSecondUs));
  this->a.send(peer, "second", {this->a.outgoing(kBytes, 2, kBytes)}, this->later());
  for (int i = 0; i < 50; ++i) this->pair.step(this->a);
  EXPECT_EQ(this->a.under_way.size(), 2u) << "neither ends by itself";
  this->pair.pass(kSecondUs);
  ASSERT_TRUE(this->until([&] { return this->a.gone(peer) != nullptr; }, false));
  EXPECT_TRUE(this->a.under_way.empty());
  EXPECT_EQ(this->a.gone(peer)->reason, Reason::timeout);
  for (const auto& [of, failed] : this->a.template all<SendFailed>()) {
    EXPECT_EQ(failed.reason, Reason::timeout);
    if (failed.id == first) {
      EXPECT_EQ(failed.error.status, VMEM_ERROR_TIMEOUT);
    }
  }
  EXPECT_EQ(this->a.template count<SendFailed>(), 2u);
}

TYPED_TEST_P(TransportConformance, APayloadFromASilentPeerIsGivenBackAtTheClaimsDeadline) {
  this->connect();
  this->b.receiver.deadline_us = this->in(kSecondUs);
  this->a.send(this->a.peer(), "half", {this->a.outgoing(30 << 20, 1)}, this->later());
  ASSERT_TRUE(this->until([&] { return !this->b.receiver.claimed.empty(); }));
  ASSERT_EQ(this->messages().size(), 0u);
  for (int i = 0; i < 50; ++i) this->pair.step(this->b);
  ASSERT_EQ(this->b.receiver.claimed.size(), 1u) << "nothing ends before the deadline";
  this->pair.pass(kSecondUs);
  ASSERT_TRUE(this->until([&] { return this->b.gone(this->b.peer()) != nullptr; }, true, false));
  EXPECT_EQ(this->b.gone(this->b.peer())->reason, Reason::timeout);
  EXPECT_EQ(this->b.template count<ReceiveFailed>(), 1u);
  EXPECT_TRUE(this->b.receiver.claimed.empty());
  ASSERT_TRUE(this->until([&] { return this->a.gone(this->a.peer()) != nullptr; }));
  EXPECT_EQ(this->a.gone(this->a.peer())->reason, Reason::left);
  EXPECT_TRUE(this->a.under_way.empty());
}

TYPED_TEST_P(TransportConformance, AConnectThatNobodyAnswersEndsAtItsDeadline) {
  const PeerId peer = *this->a.transport->connect(this->b.transport->address(), this->in(kSecondUs));
  for (int i = 0; i < 50; ++i) this->pair.step(this->a);
  EXPECT_EQ(this->a.events.size(), 0u);
  this->pair.pass(kSecondUs);
  ASSERT_TRUE(this->until([&] { return this->a.gone(peer) != nullptr; }, false));
  EXPECT_EQ(this->a.gone(peer)->reason, Reason::timeout);
  EXPECT_EQ(this->a.gone(peer)->error.status, VMEM_ERROR_TIMEOUT);
}

TYPED_TEST_P(TransportConformance, AConnectToNobodyFails) {
  const std::string address = this->b.transport->address();
  this->b.stop();
  const PeerId peer = *this->a.transport->connect(address, this->later());
  ASSERT_TRUE(this->until([&] { return this->a.gone(peer) != nullptr; }, false));
  EXPECT_EQ(this->a.gone(peer)->reason, Reason::lost);
  EXPECT_THAT(this->a.gone(peer)->error.message, ::testing::HasSubstr(address));
}

TYPED_TEST_P(TransportConformance, SendsPostedBeforeTheConnectionStandsAreSentThen) {
  const PeerId peer = *this->a.transport->connect(this->b.transport->address(), this->later());
  this->a.send(peer, "early", {this->a.outgoing(1 << 20, 3)}, this->later());
  ASSERT_TRUE(this->until([&] { return this->quiet() && this->messages().size() == 1; }));
  EXPECT_TRUE(TestNode::has_pattern(this->messages()[0].second.payload, 3));
}

TYPED_TEST_P(TransportConformance, CloseEndsEverythingOnBothSides) {
  this->connect();
  const PeerId peer = this->a.peer();
  for (unsigned i = 0; i < 4; ++i)
    this->a.send(peer, "cut", {this->a.outgoing(4 << 20, i, i * (4ul << 20))}, this->later());
  ASSERT_TRUE(this->until([&] { return !this->b.receiver.claimed.empty(); }));
  this->a.transport->close(peer);
  ASSERT_TRUE(this->until([&] { return this->a.gone(peer) && this->b.gone(this->b.peer()); }));
  EXPECT_EQ(this->a.gone(peer)->reason, Reason::closed);
  EXPECT_EQ(this->b.gone(this->b.peer())->reason, Reason::left);
  EXPECT_TRUE(this->quiet());
  EXPECT_TRUE(this->b.receiver.claimed.empty());
  EXPECT_TRUE(std::holds_alternative<Gone>(this->a.events.back().what)) << "gone is said last";
  EXPECT_TRUE(std::holds_alternative<Gone>(this->b.events.back().what));
}

TYPED_TEST_P(TransportConformance, WhoIsGoneCanBeConnectedToAgain) {
  this->connect();
  const PeerId first = this->a.peer();
  this->a.transport->close(first);
  ASSERT_TRUE(this->until([&] { return this->a.gone(first) && this->b.gone(this->b.peer()); }));
  this->a.events.clear();
  this->b.events.clear();
  this->connect();
  EXPECT_NE(this->a.peer(), first);
  this->a.send(this->a.peer(), "again", {this->a.outgoing(1 << 20, 5)}, this->later());
  ASSERT_TRUE(this->until([&] { return this->quiet() && this->messages().size() == 1; }));
}

TYPED_TEST_P(TransportConformance, SendsToWhoIsGoneFail) {
  this->connect();
  const PeerId peer = this->a.peer();
  this->a.transport->close(peer);
  ASSERT_TRUE(this->until([&] { return this->a.gone(peer) != nullptr; }));
  this->a.send(peer, "late", {}, this->later());
  ASSERT_TRUE(this->until([&] { return this->a.under_way.empty(); }));
  EXPECT_EQ(this->a.template count<SendFailed>(), 1u);
}

TYPED_TEST_P(TransportConformance, AClosedTransportIsNoticedByItsPeers) {
  this->connect();
  for (unsigned i = 0; i < 4; ++i)
    this->a.send(this->a.peer(), "cut", {this->a.outgoing(4 << 20, i, i * (4ul << 20))}, this->later());
  ASSERT_TRUE(this->until([&] { return !this->b.receiver.claimed.empty(); }));
  this->a.stop();
  ASSERT_TRUE(this->until([&] { return this->b.gone(this->b.peer()) != nullptr; }, true, false));
  EXPECT_TRUE(this->b.receiver.claimed.empty());
}

TYPED_TEST_P(TransportConformance, SendsThatCannotBeAreRefusedAndNameWhy) {
  this->connect();
  const auto refused = [&](Send send, std::string_view why) {
    send.peer = this->a.peer();
    const Status posted = this->a.transport->send({&send, 1});
    ASSERT_FALSE(posted) << why;
    EXPECT_EQ(posted.error().status, VMEM_ERROR_INVALID_VALUE);
    EXPECT_THAT(posted.error().message, ::testing::HasSubstr(why));
    EXPECT_EQ(send.id, SendId{});
  };
  const std::string long_header(kMostHeaderBytes + 1, 'x');
  std::vector<std::byte> elsewhere(100);
  const ConstBytes outside[] = {elsewhere};
  const ConstBytes nothing[] = {this->a.outgoing(0, 0)};
  const std::vector<ConstBytes> many(kMostSpans + 1, this->a.outgoing(1, 0));
  refused({.header = bytes_of(long_header), .deadline_us = this->later()}, "257 bytes");
  refused({.payload = outside, .deadline_us = this->later()}, "registered");
  refused({.payload = nothing, .deadline_us = this->later()}, "empty");
  refused({.payload = many, .deadline_us = this->later()}, "17 spans");
  refused({.deadline_us = 0}, "no deadline");
}

TYPED_TEST_P(TransportConformance, WhatIsUnderWayToOnePeerIsBounded) {
  this->connect();
  std::vector<Send> sends(kMostOutstanding + 1,
                          Send{.peer = this->a.peer(), .header = bytes_of("x"), .deadline_us = this->later()});
  const Status posted = this->a.transport->send(sends);
  ASSERT_FALSE(posted);
  EXPECT_EQ(posted.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(sends[kMostOutstanding - 1].id, SendId{});
  EXPECT_EQ(sends[kMostOutstanding].id, SendId{});
  for (const Send& send : std::span(sends).first(kMostOutstanding)) this->a.under_way.insert(send.id);
  ASSERT_TRUE(this->until([&] { return this->quiet() && this->messages().size() == kMostOutstanding; }));
  this->a.send(this->a.peer(), "room again", {}, this->later());
  ASSERT_TRUE(this->until([&] { return this->quiet() && this->messages().size() == kMostOutstanding + 1; }));
}

TYPED_TEST_P(TransportConformance, MemoryIsRegisteredAndGivenBack) {
  std::vector<std::byte> memory(1 << 20);
  auto slab = this->a.transport->register_slab(memory);
  ASSERT_TRUE(slab);
  EXPECT_EQ((*slab)->memory().data(), memory.data());
  EXPECT_FALSE(this->a.transport->register_slab({}));
  slab->reset();
  EXPECT_TRUE(this->a.transport->register_slab(memory));
}

TYPED_TEST_P(TransportConformance, WhatIsInOneOfTwoSlabsThatOverlapIsSent) {
  this->connect();
  std::vector<std::byte> memory(1 << 16, std::byte{7});
  auto whole = this->a.transport->register_slab(memory);
  auto again = this->a.transport->register_slab(memory);
  const auto part = this->a.transport->register_slab(Bytes(memory).subspan(100, 100));
  ASSERT_TRUE(whole && again && part);
  const auto send = [&](ConstBytes payload) {
    Send sent{.peer = this->a.peer(), .header = bytes_of("x"), .payload = {&payload, 1}, .deadline_us = this->later()};
    const Status posted = this->a.transport->send({&sent, 1});
    if (posted) this->a.under_way.insert(sent.id);
    return posted;
  };
  EXPECT_TRUE(send(ConstBytes(memory).subspan(150, 1000)));
  again->reset();  // the message may use its registration
  ASSERT_TRUE(this->until([&] { return this->messages().size() == 1 && this->quiet(); }));
  whole->reset();
  EXPECT_FALSE(send(ConstBytes(memory).subspan(150, 1000)));
  EXPECT_TRUE(send(ConstBytes(memory).subspan(150, 50)));
  ASSERT_TRUE(this->until([&] { return this->messages().size() == 2 && this->quiet(); }));
}

REGISTER_TYPED_TEST_SUITE_P(TransportConformance, BothSidesLearnWhomTheyAreConnectedTo, AMessageArrivesAsItWasSent,
                            APayloadOfAnySizeLandsWhereItWasClaimed, SpansOfAPayloadArriveAsOne,
                            ManyMessagesInBothDirectionsEachArriveOnce, ARefusedPayloadIsDroppedAndTheNextOneArrives,
                            ASendToASilentPeerEndsAtItsDeadlineAndSoDoesTheRest,
                            APayloadFromASilentPeerIsGivenBackAtTheClaimsDeadline,
                            AConnectThatNobodyAnswersEndsAtItsDeadline, AConnectToNobodyFails,
                            SendsPostedBeforeTheConnectionStandsAreSentThen, CloseEndsEverythingOnBothSides,
                            WhoIsGoneCanBeConnectedToAgain, SendsToWhoIsGoneFail, AClosedTransportIsNoticedByItsPeers,
                            SendsThatCannotBeAreRefusedAndNameWhy, WhatIsUnderWayToOnePeerIsBounded,
                            MemoryIsRegisteredAndGivenBack, WhatIsInOneOfTwoSlabsThatOverlapIsSent);

}  // namespace vmem::rdma
