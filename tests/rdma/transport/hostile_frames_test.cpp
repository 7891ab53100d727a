// Frames that an authenticated peer may send. Whatever they are, only that peer's link ends.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <memory>
#include <random>
#include <vector>

#include "campaign/seeds.hpp"
#include "rdma/transport/hand_made_peer.hpp"

namespace vmem::rdma {
namespace {

using stream::Frame;
using ::testing::HasSubstr;

enum class Over : std::uint8_t { unix_socket, tls };

std::string bytes(const Frame& frame, std::size_t more = 0) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame)) + std::string(more, 'x');
}

// A node with an honest peer and hostile ones.
class HostileFrames : public testing::TestWithParam<Over> {
 protected:
  void SetUp() override {
    if (GetParam() == Over::tls) keyring_ = SecretFile().read();
    honest_.start_as(honest_.config(1, "", keyring_));
    StreamConfig config = node_.config(2, "127.0.0.1:0", keyring_);
    // Long enough that no test's half-made link ends by its deadline.
    config.handshake_us = 60 * kSecondUs;
    node_.start_as(config);
    bystander_ = *honest_.transport->connect(node_.transport->address(), honest_.later());
    ASSERT_TRUE(until({&honest_, &node_}, [&] { return honest_.connected() && node_.connected(); }));
  }

  // Accepts both connections of a link, and returns its PeerId at the node.
  PeerId join(HandMadePeer& peer) {
    const std::size_t before = node_.count<Connected>();
    EXPECT_TRUE(until({&node_}, [&] { return peer.connected(0); }));
    peer.join(1);
    EXPECT_TRUE(until({&node_}, [&] { return peer.connected(1) && node_.count<Connected>() == before + 1; }));
    return node_.all<Connected>().back().first;
  }
  // The bystander's page arrives as the only message.
  void expect_service_for_the_bystander() {
    const std::size_t before = node_.count<Message>();
    honest_.send(bystander_, "page", {honest_.outgoing(1 << 16, 5)}, honest_.later());
    ASSERT_TRUE(until({&honest_, &node_}, [&] { return node_.count<Message>() == before + 1; }));
    EXPECT_TRUE(TestNode::has_pattern(node_.all<Message>().back().second.payload, 5));
    EXPECT_EQ(honest_.gone(bystander_), nullptr);
    EXPECT_TRUE(node_.receiver.claimed.empty()) << "a claim was not given back";
  }

  KeyringRef keyring_;
  Node honest_, node_;
  PeerId bystander_{};
};

TEST_P(HostileFrames, AFrameThatCannotBeEndsItsLinkAndNothingElse) {
  const auto kind = [](unsigned number) { return static_cast<Frame::Kind>(number); };
  const Frame frames[] = {{.kind = kind(0)},
                          {.kind = kind(3)},
                          {.kind = kind(0xffff)},
                          {.header_bytes = kMostHeaderBytes + 1},
                          {.header_bytes = 0xffff},
                          {.kind = Frame::Kind::farewell, .header_bytes = 0xffff},
                          {.reserved = 1},
                          {.reserved = 0x80000000},
                          {.payload_bytes = stream::kMostPayloadBytes + 1},
                          {.payload_bytes = UINT64_MAX}};
  for (const Frame& frame : frames) {
    for (const std::uint16_t index : {std::uint16_t{0}, std::uint16_t{1}}) {
      HandMadePeer hostile(keyring_, node_.transport->address());
      const PeerId id = join(hostile);
      hostile.say(bytes(frame, 512), index);
      ASSERT_TRUE(until({&node_, &honest_}, [&] { return node_.gone(id) != nullptr; }));
      EXPECT_THAT(node_.gone(id)->error.message, HasSubstr("a frame that cannot be"));
      EXPECT_TRUE(until({&node_}, [&] { return hostile.ended(0) && hostile.ended(1); }));
    }
  }
  EXPECT_TRUE(node_.receiver.announced.empty());
  EXPECT_EQ(node_.count<Message>(), 0u);
  expect_service_for_the_bystander();
}

TEST_P(HostileFrames, APayloadThatNeverComesIsGivenBackWithItsLink) {
  HandMadePeer hostile(keyring_, node_.transport->address());
  const PeerId id = join(hostile);
  hostile.say(bytes({.header_bytes = 4, .payload_bytes = 1 << 20}, 4 + 1000), 1);
  ASSERT_TRUE(until({&node_}, [&] { return node_.receiver.claimed.size() == 1; }));
  hostile.leave();
  ASSERT_TRUE(until({&node_}, [&] { return node_.gone(id) != nullptr; }));
  EXPECT_EQ(node_.count<ReceiveFailed>(), 1u);
  expect_service_for_the_bystander();
}

TEST_P(HostileFrames, APayloadThatNobodyClaimsIsNotKept) {
  HandMadePeer hostile(keyring_, node_.transport->address());
  const PeerId id = join(hostile);
  hostile.say(bytes({.header_bytes = 4, .payload_bytes = stream::kMostPayloadBytes}, 4 + 1000), 1);
  ASSERT_TRUE(until({&node_}, [&] { return node_.receiver.announced.size() == 1; }));
  EXPECT_TRUE(node_.receiver.claimed.empty());
  hostile.leave();
  ASSERT_TRUE(until({&node_}, [&] { return node_.gone(id) != nullptr; }));
  expect_service_for_the_bystander();
}

// Half of them begin with a valid frame.
TEST_P(HostileFrames, RandomBytesEndTheirLinkAtMost) {
  const auto seed = test::printed_seed();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 60; ++round) {
    HandMadePeer hostile(keyring_, node_.transport->address());
    const PeerId id = join(hostile);
    std::string said(random() % 2000 + 1, '\0');
    for (char& byte : said) byte = static_cast<char>(random());
    if (round % 2 == 0) {
      const Frame frame{.kind = static_cast<Frame::Kind>(1 + random() % 2),
                        .header_bytes = static_cast<std::uint16_t>(random() % (kMostHeaderBytes + 1)),
                        .payload_bytes = random() % 3000};
      said = bytes(frame) + said;
    }
    hostile.say(said, static_cast<std::uint16_t>(round % 4 / 2));
    for (int i = 0; i < 20; ++i) node_.step();
    hostile.leave();
    ASSERT_TRUE(until({&node_, &honest_}, [&] { return node_.gone(id) != nullptr; }));
  }
  expect_service_for_the_bystander();
}

TEST_P(HostileFrames, AConnectionOfAnotherLinkIsNotAccepted) {
  HandMadePeer hostile(keyring_, node_.transport->address());
  ASSERT_TRUE(until({&node_}, [&] { return hostile.connected(0); }));
  hostile.join_another_link(1);
  ASSERT_TRUE(until({&node_}, [&] { return hostile.connected(1) && hostile.ended(1); }));
  EXPECT_FALSE(hostile.ended(0));
  EXPECT_EQ(node_.count<Connected>(), 1u) << "only the bystander";
  hostile.join(7);
  ASSERT_TRUE(until({&node_}, [&] { return hostile.connected(7) && hostile.ended(7) && hostile.ended(0); }))
      << "an index beyond the link's channels ends the link";
  expect_service_for_the_bystander();
}

TEST_P(HostileFrames, AHalfMadeLinkTooManyEndsTheOldestOne) {
  std::vector<std::unique_ptr<HandMadePeer>> half_made;
  for (std::size_t i = 0; i < kMostHalfMadeLinks + 1; ++i) {
    half_made.push_back(std::make_unique<HandMadePeer>(keyring_, node_.transport->address()));
    ASSERT_TRUE(until({&node_}, [&] { return half_made.back()->connected(0); }));
  }
  ASSERT_TRUE(until({&node_}, [&] { return half_made.front()->ended(0); }, 2));
  EXPECT_FALSE(half_made[1]->ended(0));
  EXPECT_EQ(node_.count<Connected>(), 1u) << "only the bystander";
  half_made.back()->join(1);
  ASSERT_TRUE(until({&node_}, [&] { return half_made.back()->connected(1) && node_.count<Connected>() == 2; }));
  expect_service_for_the_bystander();
}

INSTANTIATE_TEST_SUITE_P(Over, HostileFrames, testing::Values(Over::unix_socket, Over::tls), [](const auto& test) {
  return test.param == Over::tls ? std::string("Tls") : std::string("UnixSocket");
});

}  // namespace
}  // namespace vmem::rdma
