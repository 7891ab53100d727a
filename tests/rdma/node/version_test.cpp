// Nodes of different versions, over Unix sockets: one of them pretends to be of an earlier release.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <tuple>

#include "rdma/lending/remote_fixture.hpp"
#include "rdma/transport/stream/stream_transport.hpp"

namespace vmem::rdma {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tiers::Direction;

constexpr std::uint16_t kThis = kProtocolVersion, kBefore = kThis - 1, kLongBefore = kThis - 2;

std::unique_ptr<Node> node_of(const Clock& clock, std::uint64_t id, std::uint16_t version, std::string listen) {
  const NodeIdentity self{NodeId{id}, Incarnation{1}};
  NodeSetup setup{.self = self, .make_transport = {}, .clock = &clock, .times = {}};
  setup.make_transport = [&](Receiver& receiver) {
    StreamConfig config;
    config.self = self;
    config.listen = listen;
    config.clock = &clock;
    config.receiver = &receiver;
    config.version = version;
    return create_stream_transport(std::move(config));
  };
  return *Node::create(std::move(setup));
}

// Notes the version of connections.
class Versions final : public Service {
 public:
  explicit Versions(Node& node) : node_(node) { node_.add(*this); }
  ~Versions() override { node_.remove(*this); }
  void connected(const Peer& peer) override { seen = peer.version; }
  std::span<const wire::Kind> kinds() const override { return {}; }
  bool step() override { return false; }
  void quiesce() override {}
  bool quiesced() const override { return true; }
  std::atomic<std::uint16_t> seen = 0;

 private:
  Node& node_;
};

class ProtocolVersion : public ::testing::Test {
 protected:
  void start(std::uint16_t of_lender, std::uint16_t of_borrower) {
    lending_node = node_of(clock, 1, of_lender, "127.0.0.1:0");
    lender = std::make_unique<MemoryService>(MemoryService::Config{.clock = &clock, .memory = {lent.get(), kLent}});
    ASSERT_TRUE(lender->start(*lending_node));
    lender_sees = std::make_unique<Versions>(*lending_node);
    borrowing_node = node_of(clock, 2, of_borrower, "");
    borrower_sees = std::make_unique<Versions>(*borrowing_node);
    RemoteTier::Config config;
    config.peers = {lending_node->transport().address()};
    config.by_need = true;  // which the earlier version does not know
    tier = *RemoteTier::create(std::move(config), *borrowing_node);
    lending_node->start();
    borrowing_node->start();
  }
  void TearDown() override {
    tier.reset();
    borrower_sees.reset();
    borrowing_node.reset();
    lender_sees.reset();
    if (lender) lender->stop();
  }
  tiers::Outcome move(Direction direction, tiers::SlotId slot) {
    tiers::Transfer transfer;
    transfer.version = 1;
    transfer.slot = slot;
    transfer.host = page.get();
    transfer.bytes = kPage;
    transfer.direction = direction;
    EXPECT_TRUE(tier->submit({&transfer, 1}));
    std::vector<tiers::Completion> completions;
    while (completions.empty()) {
      EXPECT_TRUE(tier->poll(completions));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return completions.front().outcome;
  }

  static constexpr std::uint64_t kLent = 4 * kPage;
  SteadyClock clock;
  PageMemory lent = page_memory(kLent), page = page_memory(kPage);
  std::unique_ptr<Node> lending_node, borrowing_node;
  std::unique_ptr<MemoryService> lender;
  std::unique_ptr<Versions> lender_sees, borrower_sees;
  std::unique_ptr<RemoteTier> tier;
};

class OneVersionApart : public ProtocolVersion,
                        public ::testing::WithParamInterface<std::tuple<std::uint16_t, std::uint16_t>> {};

TEST_P(OneVersionApart, PagesGoThereAndBackInTheOlderOnesMessages) {
  const auto [of_lender, of_borrower] = GetParam();
  ASSERT_NO_FATAL_FAILURE(start(of_lender, of_borrower));
  ASSERT_TRUE(tier->wait_for_peers(10'000'000));
  EXPECT_EQ(lender_sees->seen, kBefore);
  EXPECT_EQ(borrower_sees->seen, kBefore);
  const auto slot = *tier->allocate(kPage);
  ASSERT_EQ(slot.grant, tiers::Grant::granted);
  std::memset(page.get(), 7, kPage);
  ASSERT_EQ(move(Direction::store, slot.slot), tiers::Outcome::done);
  std::memset(page.get(), 0, kPage);
  ASSERT_EQ(move(Direction::load, slot.slot), tiers::Outcome::done);
  EXPECT_EQ(page.get()[kPage - 1], std::byte{7});
}
INSTANTIATE_TEST_SUITE_P(Node, OneVersionApart,
                         ::testing::Values(std::tuple(kThis, kBefore), std::tuple(kBefore, kThis)),
                         [](const auto& each) {
                           return std::get<0>(each.param) == kThis ? "NewerLender" : "NewerBorrower";
                         });

TEST_F(ProtocolVersion, TwoVersionsApartBothSidesSayWhichNodeIsTooOld) {
  testing::internal::CaptureStderr();
  ASSERT_NO_FATAL_FAILURE(start(kThis, kLongBefore));
  const Status reached = tier->wait_for_peers(10'000'000);
  ASSERT_FALSE(reached);
  EXPECT_THAT(reached.error().message,
              AllOf(HasSubstr(fmt::format("the peer speaks version {} of the protocol, this node version {}", kThis,
                                          kLongBefore)),
                    HasSubstr("run a newer release on this node")));
  TearDown();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(fmt::format("the peer speaks version {} of the protocol, this node version {}",
                                          kLongBefore, kThis)),
                    HasSubstr("run a newer release on it")));
}

// A message whose version is not its connection's is none.
TEST(MessageVersion, AMessageHasTheVersionOfItsConnection) {
  const auto bytes = *wire::write({.version = kBefore, .request = {1, Epoch{1}, 1}});
  EXPECT_TRUE(wire::parse(bytes, kBefore));
  const auto refused = wire::parse(bytes, kThis);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr(fmt::format("it has protocol version {}, its connection {}", kBefore, kThis)));
}

}  // namespace
}  // namespace vmem::rdma
