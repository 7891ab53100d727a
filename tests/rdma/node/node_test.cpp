// A Node delivers each message to whom it concerns, and lets a service go when nothing of it is in
// flight.
#include "rdma/node/node.hpp"

#include <gmock/gmock.h>

#include <array>
#include <atomic>
#include <thread>

#include "rdma/node/scripted_transport.hpp"
#include "rdma/transport/in_process/in_process.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;
using wire::Kind;

constexpr PeerId kPeer{5}, kOther{6};
constexpr NodeId kThere{9};

class Recorder : public Service {
 public:
  explicit Recorder(std::vector<Kind> kinds) : kinds_(std::move(kinds)) {}
  std::span<const Kind> kinds() const override { return kinds_; }
  Status admit(const Connected&) override { return admits; }
  void connected(const Peer& peer) override { peers.push_back(peer.id); }
  void gone(const Peer& peer, const Gone&) override { std::erase(peers, peer.id); }
  std::optional<Claim> claim(const Peer&, const wire::Parsed&, std::uint64_t bytes) override {
    if (bytes != memory.size()) return std::nullopt;
    return Claim{memory, ++last_token, 1'000};
  }
  void landed(std::uint64_t token) override { tokens.push_back(token); }
  void receive_failed(std::uint64_t token) override { failed.push_back(token); }
  void request(const Peer&, const wire::Parsed& message) override { requests.push_back(message.header.kind); }
  void notice(const Peer&, const wire::Parsed& message) override { notices.push_back(message.header.kind); }
  bool step() override {
    ++steps;
    return false;
  }
  void quiesce() override { quiescing = true; }
  bool quiesced() const override { return !busy; }

  std::array<std::byte, 16> memory{};
  Status admits;
  std::vector<PeerId> peers;
  std::vector<Kind> requests, notices;
  std::vector<std::uint64_t> tokens, failed;
  std::uint64_t last_token = 0;
  std::atomic<int> steps = 0;
  std::atomic<bool> busy = false, quiescing = false;

 private:
  const std::vector<Kind> kinds_;
};

class NodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    host->add(pages);
    host->add(leases);
    transport.connected(kPeer, kThere);
    host->step();
  }
  void TearDown() override {
    pages.busy = false;
    host->remove(pages);
    host->remove(leases);
  }
  std::optional<Claim> announce(Kind kind, std::uint64_t bytes, NodeId from = kThere) {
    const auto header = *wire::write(
        {.kind = kind, .request = {static_cast<std::uint64_t>(from), Epoch{1}, 1}, .payload_bytes = bytes});
    return host->claim(kPeer, header, bytes);
  }
  ManualClock clock;
  ScriptedTransport* made = nullptr;
  const std::unique_ptr<Node> host = scripted_node(clock, made);
  ScriptedTransport& transport = *made;
  Recorder pages{{Kind::put, Kind::fetch}}, leases{{Kind::allocate}};
};

TEST_F(NodeTest, ARequestGoesToTheServiceOfItsKind) {
  transport.says(kPeer, kThere, Kind::fetch, ConstBytes{});
  transport.says(kPeer, kThere, Kind::allocate, ConstBytes{});
  transport.says(kPeer, kThere, Kind::end, ConstBytes{});
  host->step();
  EXPECT_THAT(pages.requests, ElementsAre(Kind::fetch));
  EXPECT_THAT(leases.requests, ElementsAre(Kind::allocate));
  EXPECT_EQ(host->peers().rejected(), 1u) << "nobody serves `end`";
}

// One that this node made, beside the other node's.
TEST_F(NodeTest, OfTwoConnectionsToANodeTheOneThatSpokeLastIsUsed) {
  transport.push(kOther, Connected{.node = {kThere, Incarnation{1}}, .by_us = true});
  for (const PeerId last : {kPeer, kOther, kPeer}) {
    clock.advance(1);
    transport.says(last, kThere, Kind::ping, ConstBytes{});
    host->step();
    EXPECT_EQ(host->peers().find(NodeIdentity{kThere, Incarnation{1}})->id, last);
  }
}

TEST_F(NodeTest, ARequestOfAnotherNodeOrNoneGoesNowhere) {
  transport.says(kPeer, NodeId{8}, Kind::fetch, ConstBytes{});
  transport.says(kOther, kThere, Kind::fetch, ConstBytes{});
  transport.push(kPeer, Message{.header = std::vector<std::byte>(20)});
  host->step();
  EXPECT_TRUE(pages.requests.empty());
  EXPECT_FALSE(announce(Kind::put, 16, NodeId{8}));
  EXPECT_EQ(host->peers().rejected(), 4u);
}

TEST_F(NodeTest, PayloadsOfTwoServicesAreToldApart) {
  Recorder other{{Kind::end}};
  host->add(other);
  const auto first = announce(Kind::put, 16), second = announce(Kind::end, 16);
  ASSERT_TRUE(first && second);
  EXPECT_NE(first->token, second->token) << "both services call it 1";
  EXPECT_FALSE(announce(Kind::put, 17));
  transport.landed(kPeer, second->token);
  transport.push(kPeer, ReceiveFailed{.token = first->token});
  host->step();
  EXPECT_THAT(other.tokens, ElementsAre(1));
  EXPECT_THAT(pages.failed, ElementsAre(1));
  EXPECT_TRUE(pages.tokens.empty());
  host->remove(other);
}

TEST_F(NodeTest, PingsAreAnsweredAndPongsAndNoticesDelivered) {
  transport.says(kPeer, kThere, Kind::ping, ConstBytes{});
  transport.says(kPeer, {1, Epoch{1}, wire::kUnasked}, Kind::allocated, {});
  host->step();
  ASSERT_EQ(transport.sent.size(), 1u);
  EXPECT_EQ(transport.header(0).kind, Kind::pong);
  EXPECT_THAT(pages.notices, ElementsAre(Kind::allocated));
  EXPECT_THAT(leases.notices, ElementsAre(Kind::allocated));
}

TEST_F(NodeTest, AServiceMayRefuseANode) {
  leases.admits = fail(VMEM_ERROR_INVALID_OPTION, "full");
  transport.connected(kOther, NodeId{10});
  host->step();
  EXPECT_THAT(transport.closed, ElementsAre(kOther));
  EXPECT_THAT(pages.peers, ElementsAre(kPeer));
  transport.says(kOther, NodeId{10}, Kind::fetch, ConstBytes{});
  host->step();
  EXPECT_TRUE(pages.requests.empty());
}

TEST_F(NodeTest, ACallBeyondItsDeadlineClosesAConnectionThatTheOtherNodeMade) {
  const Call call{.peer = kPeer, .kind = Kind::fetch, .deadline_us = clock.now_us() + 10, .owner = &pages};
  std::optional<CallEnd> ended;
  ASSERT_TRUE(host->calls().begin(call, [&](const CallEnd& end) { ended = end; }));
  clock.advance(10);
  host->step();
  host->step();
  EXPECT_THAT(transport.closed, ElementsAre(kPeer));
  EXPECT_FALSE(ended);
  transport.gone(kPeer);
  host->step();
  ASSERT_TRUE(ended);
  EXPECT_FALSE(ended->answered);
  EXPECT_TRUE(pages.peers.empty());
}

TEST_F(NodeTest, AServiceThatWasRemovedIsCalledNoMore) {
  const auto claim = announce(Kind::put, 16);
  ASSERT_TRUE(claim);
  host->remove(pages);
  const int steps = pages.steps;
  transport.landed(kPeer, claim->token);
  transport.says(kPeer, kThere, Kind::fetch, ConstBytes{});
  transport.gone(kPeer);
  host->step();
  EXPECT_EQ(pages.steps, steps);
  EXPECT_TRUE(pages.tokens.empty() && pages.requests.empty());
  EXPECT_THAT(pages.peers, ElementsAre(kPeer)) << "it is not told";
}

TEST_F(NodeTest, AServiceIsLetGoWhenItsCallsHaveEnded) {
  const Call call{.peer = kPeer, .kind = Kind::fetch, .deadline_us = UINT64_MAX, .owner = &pages};
  bool ended = false;
  ASSERT_TRUE(host->calls().begin(call, [&](const CallEnd&) { ended = true; }));
  int turns = 0;
  transport.on_progress = [&] {
    if (++turns == 3) transport.gone(kPeer);
  };
  host->remove(pages);
  EXPECT_EQ(turns, 3);
  EXPECT_TRUE(ended);
}

TEST(NodeThread, RemoveWaitsUntilTheServiceIsQuiesced) {
  const SteadyClock clock;
  Fabric fabric(clock);
  NodeSetup setup{.self = kScriptedSelf, .make_transport = {}, .clock = &clock, .times = {}};
  setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
    return fabric.node(kScriptedSelf, receiver);
  };
  const auto node = *Node::create(setup);
  Recorder service{{Kind::put}};
  service.busy = true;
  node->add(service);
  node->start();
  std::atomic<bool> removed = false;
  std::thread remover([&] {
    node->remove(service);
    removed = true;
  });
  while (!service.quiescing) std::this_thread::yield();
  EXPECT_FALSE(removed);
  service.busy = false;
  node->wake();
  remover.join();
  const int steps = service.steps;
  Recorder last{{Kind::put}};
  node->remove(last);  // a whole step later
  EXPECT_EQ(service.steps, steps);
}

}  // namespace
}  // namespace vmem::rdma
