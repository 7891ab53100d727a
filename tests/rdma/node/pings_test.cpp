#include "rdma/node/pings.hpp"

#include <gmock/gmock.h>

#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;

constexpr NodeId kThere{9};

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
  pass(Pings::kQuietUs - 1);
  pings.send_if_quiet(peer);
  EXPECT_TRUE(transport.sent.empty());
  pass(1);
  pings.send_if_quiet(peer);
  ASSERT_EQ(transport.sent.size(), 1u);
  answer(0);
  pings.send_if_quiet(peer);
  EXPECT_EQ(transport.sent.size(), 1u) << "its pong is word of it";
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
