#include "rdma/node/pings.hpp"

#include <gmock/gmock.h>

#include "rdma/node/scripted_transport.hpp"
#include "rdma/transport/event_batch.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;

constexpr NodeId kThere{9};
constexpr std::uint64_t kQuietUs = 70'000;

class PingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    transport.connected(peer, kThere);
    pass(0);
  }
  void pass(std::uint64_t us) {
    clock.advance(us);
    while (host->step()) {
    }
  }
  void answer(std::size_t sent) {
    transport.says(peer, transport.header(sent).request, wire::Kind::pong, {});
    pass(0);
  }
  ManualClock clock;
  ScriptedTransport* made = nullptr;
  const std::unique_ptr<Node> host = scripted_node(clock, made);
  ScriptedTransport& transport = *made;
  Pings& pings = host->pings();
  const PeerId peer{3};  // it has connected to this node
};

TEST_F(PingsTest, OneAtATimeIsOnItsWay) {
  pings.send(peer);
  pings.send(peer);
  ASSERT_EQ(transport.sent.size(), 1u);
  EXPECT_EQ(transport.header(0).kind, wire::Kind::ping);
  answer(0);
  pings.send(peer);
  EXPECT_EQ(transport.sent.size(), 2u);
}

TEST_F(PingsTest, OneThatIsNotAnsweredClosesAConnectionThatTheOtherNodeMade) {
  pings.send(peer);
  pass(LinkTimes{}.request_us - 1);
  EXPECT_THAT(transport.closed, ElementsAre());
  pass(1);
  EXPECT_THAT(transport.closed, ElementsAre(peer));
}

TEST_F(PingsTest, WhoHasJustSaidSomethingIsNotInDoubt) {
  pass(kQuietUs - 1);
  pings.send_if_quiet(peer, kQuietUs);
  EXPECT_TRUE(transport.sent.empty());
  pass(1);
  pings.send_if_quiet(peer, kQuietUs);
  ASSERT_EQ(transport.sent.size(), 1u);
  answer(0);
  pings.send_if_quiet(peer, kQuietUs);
  EXPECT_EQ(transport.sent.size(), 1u) << "its pong is word of it";
}

TEST_F(PingsTest, ARequestOfThePeerIsWordOfIt) {
  pass(kQuietUs);
  transport.says(peer, kThere, wire::Kind::ping, {});
  pass(0);
  ASSERT_EQ(transport.sent.size(), 1u) << "the pong";
  pings.send_if_quiet(peer, kQuietUs);
  EXPECT_EQ(transport.sent.size(), 1u);
}

TEST_F(PingsTest, WhereAnAnswerIsAwaitedItsOwnDeadlineCloses) {
  const Call call{
      .peer = peer, .kind = wire::Kind::allocate, .deadline_us = clock.now_us() + 2 * LinkTimes{}.request_us};
  ASSERT_TRUE(host->calls().begin(call, [](const CallEnd&) {}));
  pass(LinkTimes{}.request_us);
  pings.send_if_quiet(peer, kQuietUs);
  pass(LinkTimes{}.request_us - 1);
  EXPECT_EQ(transport.sent.size(), 1u) << "the call alone";
  EXPECT_TRUE(transport.closed.empty());
  pass(1);
  EXPECT_THAT(transport.closed, ElementsAre(peer));
}

TEST_F(PingsTest, OnePendingAtTheEndOfAConnectionIsForgotten) {
  pings.send(peer);
  transport.gone(peer);
  pass(LinkTimes{}.request_us);
  transport.connected(peer, kThere);
  pass(0);
  pings.send(peer);
  EXPECT_EQ(transport.sent.size(), 2u);
  EXPECT_TRUE(transport.closed.empty());
}

// A node that was held up finds many events at once.
TEST_F(PingsTest, AnAnswerThatWaitsBehindOtherEventsIsInTime) {
  pings.send(peer);
  const wire::RequestId asked = transport.header(0).request;
  for (std::size_t i = 0; i < 2 * EventBatch::kAtOnce; ++i) transport.says(peer, kThere, wire::Kind::ping, {});
  transport.says(peer, asked, wire::Kind::pong, {});
  pass(LinkTimes{}.request_us);
  EXPECT_TRUE(transport.closed.empty());
}

TEST_F(PingsTest, OneThatCannotBeSentIsSentLater) {
  transport.next_send = fail(VMEM_ERROR_OUT_OF_MEMORY, "no room for a message");
  pings.send(peer);
  transport.next_send = {};
  pings.send(peer);
  EXPECT_EQ(transport.sent.size(), 1u);
}

}  // namespace
}  // namespace vmem::rdma
