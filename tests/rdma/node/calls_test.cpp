#include "rdma/node/calls.hpp"

#include <gmock/gmock.h>

#include <array>

#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {
namespace {

using wire::Kind;

constexpr PeerId kPeer{5}, kOther{6};

class CallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto admit = [](const Connected&) { return Status{}; };
    (void)book.connected(kPeer, {.node = {NodeId{7}, Incarnation{1}}, .path = ""}, admit);
  }
  // Begins a fetch whose reply has a body of `reply_bytes`; returns its sequence.
  std::uint64_t begin(std::uint64_t deadline_us, std::size_t reply_bytes = 4, Bytes destination = {},
                      ConstBytes payload = {}) {
    const Call call{.peer = kPeer,
                    .kind = Kind::fetch,
                    .payload = payload,
                    .destination = destination,
                    .reply_bytes = reply_bytes,
                    .deadline_us = deadline_us};
    EXPECT_TRUE(calls.begin(call, [this](const CallEnd& end) { ends.push_back(end); }));
    return transport.header(transport.sent.size() - 1).request.sequence;
  }
  std::vector<std::byte> reply_bytes(std::uint64_t sequence, ConstBytes body, Kind kind = Kind::fetched) const {
    return *wire::write({.kind = kind, .request = {1, Epoch{1}, sequence}}, body);
  }
  void reply(PeerId from, std::uint64_t sequence, ConstBytes body, Kind kind = Kind::fetched) {
    const auto bytes = reply_bytes(sequence, body, kind);
    calls.answered(from, *wire::parse(bytes));
    calls.run_ended();
  }
  std::vector<PeerId> late() {
    std::vector<PeerId> peers;
    calls.for_late([&](PeerId peer) { peers.push_back(peer); });
    return peers;
  }
  static constexpr std::array<std::byte, 4> kBody{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};

  ManualClock clock;
  ScriptedTransport transport;
  PeerBook book{transport, clock, 1000};
  Calls calls{transport, book, clock, kScriptedSelf};
  std::vector<CallEnd> ends;
};

TEST_F(CallsTest, AReplyEndsItsCallAndNoOther) {
  const std::uint64_t first = begin(100), second = begin(100);
  reply(kPeer, second, kBody);
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].answered);
  EXPECT_FALSE(ends[0].landed);
  EXPECT_THAT(ends[0].body, ::testing::ElementsAreArray(kBody));
  reply(kPeer, second, kBody);
  EXPECT_EQ(ends.size(), 1u) << "it came twice";
  reply(kPeer, first, kBody);
  EXPECT_EQ(ends.size(), 2u);
}

TEST_F(CallsTest, WhatIsNoReplyToTheCallIsIgnored) {
  const std::uint64_t sequence = begin(100);
  reply(kOther, sequence, kBody);
  reply(kPeer, sequence + 1, kBody);
  reply(kPeer, sequence, kBody, Kind::put_done);
  reply(kPeer, sequence, ConstBytes(kBody).first(3));
  EXPECT_TRUE(ends.empty());
  reply(kPeer, sequence, kBody);
  EXPECT_EQ(ends.size(), 1u);
}

TEST_F(CallsTest, APayloadLandsOnlyInADestinationOfItsSize) {
  std::array<std::byte, 32> memory{};
  const std::uint64_t sequence = begin(100, 4, memory);
  const auto bytes = reply_bytes(sequence, kBody);
  const auto message = *wire::parse(bytes);
  EXPECT_FALSE(calls.claim(kPeer, message, 31));
  EXPECT_FALSE(calls.claim(kOther, message, 32));
  const auto claim = calls.claim(kPeer, message, 32);
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->destination.data(), memory.data());
  EXPECT_FALSE(calls.claim(kPeer, message, 32)) << "it is landing";
  reply(kPeer, sequence, kBody);
  EXPECT_TRUE(ends.empty()) << "its memory is in use";
  calls.landed(claim->token);
  calls.run_ended();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].answered && ends[0].landed);
  EXPECT_THAT(ends[0].body, ::testing::ElementsAreArray(kBody));
}

TEST_F(CallsTest, ACallWhoseConnectionBreaksEndsWhenItsMemoryIsFree) {
  std::array<std::byte, 8> memory{};
  const std::uint64_t sending = begin(100, 4, {}, memory);
  const SendId send = transport.sent.back().id;
  const std::uint64_t landing = begin(100, 4, memory);
  const auto bytes = reply_bytes(landing, kBody);
  const auto claim = calls.claim(kPeer, *wire::parse(bytes), 8);
  ASSERT_TRUE(claim);
  begin(100);
  calls.break_all(kPeer);
  calls.run_ended();
  EXPECT_EQ(ends.size(), 1u) << "the one without memory";
  calls.receive_failed(claim->token);
  calls.run_ended();
  EXPECT_EQ(ends.size(), 2u);
  calls.send_failed(send);
  calls.run_ended();
  ASSERT_EQ(ends.size(), 3u);
  for (const CallEnd& end : ends) EXPECT_FALSE(end.answered);
  reply(kPeer, sending, kBody);
  EXPECT_EQ(ends.size(), 3u);
}

// Its deadline closes the connection, which would end nothing.
TEST_F(CallsTest, ACallOverAConnectionThatIsGoneEnds) {
  const Call call{.peer = kOther, .kind = Kind::fetch, .deadline_us = clock.now_us() + 100};
  ASSERT_TRUE(calls.begin(call, [this](const CallEnd& end) { ends.push_back(end); }));
  EXPECT_TRUE(ends.empty()) << "not while it begins";
  EXPECT_TRUE(calls.run_ended());
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_FALSE(ends[0].answered);
  EXPECT_TRUE(transport.sent.empty());
}

TEST_F(CallsTest, AnAnswerBeforeTheEndOfTheSendCounts) {
  const std::array<std::byte, 8> memory{};
  const std::uint64_t sequence = begin(100, 4, {}, memory);
  reply(kPeer, sequence, kBody);
  EXPECT_TRUE(ends.empty());
  calls.send_failed(transport.sent.back().id);
  calls.run_ended();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(ends[0].answered);
}

TEST_F(CallsTest, LateCallsAreFoundWhateverTheOrderOfTheirDeadlines) {
  const std::uint64_t base = clock.now_us();
  begin(base + 300);
  const std::uint64_t early = begin(base + 100);
  begin(base + 200);
  EXPECT_TRUE(late().empty());
  clock.advance(100);
  EXPECT_EQ(late().size(), 1u);
  reply(kPeer, early, kBody);
  EXPECT_TRUE(late().empty());
  clock.advance(200);
  EXPECT_EQ(late().size(), 2u);
}

TEST_F(CallsTest, WhatCannotBeSentEndsAtOnceAndCallsNothing) {
  transport.next_send = fail(VMEM_ERROR_OUT_OF_MEMORY, "too many");
  const Call call{.peer = kPeer, .kind = Kind::fetch, .deadline_us = 100};
  EXPECT_FALSE(calls.begin(call, [](const CallEnd&) { FAIL(); }));
  calls.break_all(kPeer);
  EXPECT_FALSE(calls.run_ended());
}

}  // namespace
}  // namespace vmem::rdma
