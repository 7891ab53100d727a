#include "rdma/node/parcels.hpp"

#include <gmock/gmock.h>

#include "rdma/transport/in_process/in_process.hpp"

namespace vmem::rdma {
namespace {

using Topic = Parcels::Topic;

constexpr std::size_t kBuffers = 4;

class NoUser final : public LinkUser {
 public:
  Status up(LinkId, const Connected&) override { return {}; }
  void down(LinkId, const LinkDown&) override {}
};

class ParcelsTest : public ::testing::Test {
 protected:
  ParcelsTest() {
    to_second = first->links().add({"node:2"}, user);
    until([&] { return first->links().is_up(to_second); });
    in->receive(Topic::directory, [this](const Peer& from, ConstBytes bytes) {
      EXPECT_EQ(from.node.id, NodeId{1});
      got.emplace_back(bytes.begin(), bytes.end());
    });
  }
  std::unique_ptr<Node> node(std::uint64_t id) {
    NodeSetup setup{
        .self = {NodeId{id}, Incarnation{1}}, .make_transport = {}, .clock = &clock, .times = {}, .own_thread = false};
    setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      return fabric.node(setup.self, receiver);
    };
    return *Node::create(setup);
  }
  template <class Done>
  void until(Done done) {
    for (int i = 0; !done(); ++i) {
      ASSERT_LT(i, 10'000) << "it did not come to pass";
      const bool did = first->turn();
      if (!second->turn() && !did) clock.advance(100);
    }
  }
  Status send(std::size_t bytes, Topic topic = Topic::directory) {
    std::vector<std::byte> parcel(bytes);
    for (std::size_t i = 0; i < bytes; ++i) parcel[i] = std::byte(i * 31 + bytes);
    sent.push_back(parcel);
    return out->send(first->links().peer(to_second), topic, parcel);
  }
  ManualClock clock;
  Fabric fabric{clock};
  NoUser user;
  std::unique_ptr<Node> first = node(1), second = node(2);
  std::unique_ptr<Parcels> out = *Parcels::create(*first, kBuffers), in = *Parcels::create(*second, kBuffers);
  LinkId to_second{};
  std::vector<std::vector<std::byte>> sent, got;
};

TEST_F(ParcelsTest, OfAnySizeArrivesWhole) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, wire::kMostBodyBytes - 4, wire::kMostBodyBytes - 3,
                                  std::size_t{5000}, Parcels::kMostBytes}) {
    ASSERT_TRUE(send(bytes)) << bytes;
    until([&] { return got.size() == sent.size(); });
    EXPECT_EQ(got.back(), sent.back()) << bytes;
  }
  const Status refused = send(Parcels::kMostBytes + 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "a message of 65537 bytes; the most is 65536");
}

TEST_F(ParcelsTest, WithoutABufferOneIsNotSentAndLaterItIs) {
  for (std::size_t i = 0; i < kBuffers; ++i) ASSERT_TRUE(send(1000));
  const Status refused = send(1000);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(send(10)) << "it needs none";
  until([&] { return got.size() == kBuffers + 1 && out->quiesced(); });
  EXPECT_TRUE(send(1000));
  until([&] { return got.size() == kBuffers + 2; });
}

TEST_F(ParcelsTest, OfATopicWithoutReceiverIsDroppedAndItsBufferFree) {
  for (std::size_t i = 0; i < 3 * kBuffers; ++i) {
    ASSERT_TRUE(send(1000, Topic::registry_reply));
    until([&] { return out->quiesced(); });
  }
  ASSERT_TRUE(send(1000));
  until([&] { return got.size() == 1; });
}

TEST_F(ParcelsTest, MalformedOnesAreDropped) {
  const Peer from{.id = PeerId{1}, .node = {NodeId{1}, Incarnation{1}}};
  const auto parcel = [](std::vector<std::byte> body) {
    return *wire::write({.kind = wire::Kind::parcel, .request = {1, Epoch{1}, 1}}, body);
  };
  for (const auto& body : {std::vector<std::byte>(3), std::vector<std::byte>(4, std::byte{9})}) {
    const auto bytes = parcel(body);
    in->request(from, *wire::parse(bytes));
    EXPECT_FALSE(in->claim(from, *wire::parse(bytes), 10));
  }
  const auto longer = parcel(std::vector<std::byte>(5));
  EXPECT_FALSE(in->claim(from, *wire::parse(longer), 10)) << "bytes in the header, and a payload";
  const auto good = parcel(std::vector<std::byte>(4));
  EXPECT_FALSE(in->claim(from, *wire::parse(good), Parcels::kMostBytes + 1));
  EXPECT_TRUE(got.empty());
}

// A node that is reached at two addresses.
TEST_F(ParcelsTest, OneThatFindsAConnectionDeadHasItMadeAnewOverTheNextAddress) {
  const LinkTimes times;
  first->links().remove(to_second);
  to_second = first->links().add({"node:2", "node:2/2"}, user);
  until([&] { return first->links().is_up(to_second); });
  std::uint64_t dead = 0;
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{5000}}) {
    clock.advance(times.reconnect_us);
    fabric.set_cut(NodeId{2}, 2 - dead, false);
    fabric.set_cut(NodeId{2}, dead, true);
    const PeerId was = first->links().peer(to_second);
    const std::uint64_t begun_us = clock.now_us();
    ASSERT_TRUE(send(bytes));
    until([&] {
      if (clock.now_us() == begun_us) clock.advance(times.request_us);
      return first->links().is_up(to_second) && first->links().peer(to_second) != was;
    });
    EXPECT_LT(clock.now_us() - begun_us, times.request_us + times.reconnect_us);
    ASSERT_TRUE(send(20));
    until([&] { return !got.empty() && got.back().size() == 20; });
    got.clear();
    dead = 2;
  }
}

TEST_F(ParcelsTest, OneToAQuietNodeThatLivesClosesNothing) {
  const PeerId was = first->links().peer(to_second);
  clock.advance(Parcels::kQuietUs);
  ASSERT_TRUE(send(10));
  until([&] { return got.size() == 1; });
  clock.advance(LinkTimes{}.request_us);
  ASSERT_TRUE(send(10));
  until([&] { return got.size() == 2; });
  EXPECT_TRUE(first->links().is_up(to_second));
  EXPECT_EQ(first->links().peer(to_second), was);
}

TEST_F(ParcelsTest, TheEndWaitsForNothingThatWasDelivered) {
  ASSERT_TRUE(send(2000));
  until([&] { return got.size() == 1 && out->quiesced(); });
  out.reset();
  in.reset();
}

}  // namespace
}  // namespace vmem::rdma
