#include "rdma/handshake.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "rdma/envelope.hpp"
#include "rdma/test_node.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;
using Role = Handshake::Role;

const CryptoRef crypto = *Crypto::load();

Secret secret(std::string_view content) {
  Secret made("cluster");
  std::ranges::copy(crypto->hash(std::as_bytes(std::span(content))).bytes, made.memory.bytes().begin());
  return made;
}

Introduction introduction(std::uint64_t id) {
  return {{NodeId{id}, Incarnation{id * 10}},
          {0x7d0000000000, 1ull << 40, 2 << 20},
          std::vector<std::byte>(100, std::byte{7})};
}

// Both ends, and what goes between them.
struct Meeting {
  Meeting(const Secret* ours, const Secret* theirs, Introduction first = introduction(1),
          Introduction second = introduction(2))
      : initiator(Role::initiator, *crypto, ours, std::move(first)),
        responder(Role::responder, *crypto, theirs, std::move(second)) {}

  // Hands over in pieces of `piece` bytes until neither has anything to say or one refused.
  void run(std::size_t piece = 1000) {
    to_responder = initiator.start();
    if (said_to_responder) said_to_responder(to_responder);
    while (initiator_says && responder_says && (!to_responder.empty() || !to_initiator.empty())) {
      hand(to_responder, responder, to_initiator, responder_says, piece);
      if (said_to_initiator) said_to_initiator(to_initiator);
      hand(to_initiator, initiator, to_responder, initiator_says, piece);
      if (said_to_responder) said_to_responder(to_responder);
    }
    // What the one that refused said before reaches the other.
    if (initiator_says) hand(to_initiator, initiator, to_responder, initiator_says, piece);
  }
  static void hand(std::vector<std::byte>& bytes, Handshake& to, std::vector<std::byte>& out, Status& status,
                   std::size_t piece) {
    while (!bytes.empty() && status && to.wanted() != 0) {
      const std::size_t count = std::min({piece, bytes.size(), to.wanted()});
      status = to.receive(ConstBytes(bytes).first(count), out);
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(count));
    }
  }
  bool met() const { return initiator.done() && responder.done(); }

  Handshake initiator, responder;
  Status initiator_says, responder_says;
  std::vector<std::byte> to_responder, to_initiator;
  std::function<void(std::vector<std::byte>&)> said_to_initiator, said_to_responder;
};

TEST(Handshake, NodesWithTheSameSecretMeet) {
  const Secret shared = secret("a secret of sixteen bytes");
  for (const std::size_t piece : {1ul, 7ul, 1000ul}) {
    Meeting meeting(&shared, &shared);
    meeting.run(piece);
    ASSERT_TRUE(meeting.met()) << piece;
    const Acquaintance first = meeting.initiator.take(), second = meeting.responder.take();
    EXPECT_EQ(first.peer.node, introduction(2).node);
    EXPECT_EQ(second.peer.node, introduction(1).node);
    EXPECT_EQ(first.peer.endpoint, introduction(2).endpoint);
    EXPECT_EQ(first.our_link, second.their_link);
    EXPECT_EQ(first.their_link, second.our_link);
    EXPECT_EQ(first.send_key.bytes, second.receive_key.bytes);
    EXPECT_EQ(first.receive_key.bytes, second.send_key.bytes);
    EXPECT_NE(first.send_key.bytes, first.receive_key.bytes);
  }
}

TEST(Handshake, AnotherSecretIsRefusedBeforeAnyAddressIsSaid) {
  const Secret ours = secret("a secret of sixteen bytes"), theirs = secret("another secret, as long");
  Meeting meeting(&ours, &theirs);
  std::size_t said = 0;
  meeting.said_to_initiator = [&](const auto& bytes) { said = std::max(said, bytes.size()); };
  meeting.run();
  EXPECT_FALSE(meeting.met());
  ASSERT_FALSE(meeting.initiator_says);
  EXPECT_THAT(meeting.initiator_says.error().message, HasSubstr("node 2 does not know this node's secret"));
  EXPECT_EQ(said, sizeof(wire::Hello) + sizeof(Tag));
}

TEST(Handshake, AnInitiatorWithAnotherSecretIsRefusedToo) {
  // The initiator does not check, as an attacker would not: it sends a proof under its own secret.
  const Secret ours = secret("a secret of sixteen bytes");
  Meeting meeting(&ours, &ours);
  meeting.said_to_responder = [&](std::vector<std::byte>& bytes) {
    if (bytes.size() > sizeof(wire::Hello)) bytes[0] ^= std::byte{1};  // of the proof
  };
  meeting.run();
  ASSERT_FALSE(meeting.responder_says);
  EXPECT_THAT(meeting.responder_says.error().message, HasSubstr("node 1 does not know"));
  EXPECT_FALSE(meeting.responder.done());
}

TEST(Handshake, OneSecretAndNoneIsRefusedByName) {
  const Secret ours = secret("a secret of sixteen bytes");
  Meeting with(&ours, nullptr);
  with.run();
  EXPECT_THAT(with.responder_says.error().message, HasSubstr("the peer has a secret, this node none"));
  EXPECT_THAT(with.initiator_says.error().message, HasSubstr("the peer has no secret, this node one"));
}

TEST(Handshake, AReplayOfARecordedHandshakeFails) {
  const Secret shared = secret("a secret of sixteen bytes");
  std::vector<std::byte> recorded;
  Meeting first(&shared, &shared);
  first.said_to_responder = [&](const auto& bytes) { recorded.insert(recorded.end(), bytes.begin(), bytes.end()); };
  first.run();
  ASSERT_TRUE(first.met());
  ASSERT_FALSE(recorded.empty());

  Handshake responder(Role::responder, *crypto, &shared, introduction(2));
  std::vector<std::byte> out;
  Status says;
  Meeting::hand(recorded, responder, out, says, 1000);
  ASSERT_FALSE(says);
  EXPECT_FALSE(responder.done());
  EXPECT_EQ(out.size(), sizeof(wire::Hello) + sizeof(Tag)) << "its address was not said";
}

TEST(Handshake, AReflectedHelloIsRefused) {
  const Secret shared = secret("a secret of sixteen bytes");
  Handshake initiator(Role::initiator, *crypto, &shared, introduction(1));
  std::vector<std::byte> out;
  EXPECT_FALSE(initiator.receive(initiator.start(), out));
  EXPECT_TRUE(out.empty());
}

TEST(Handshake, NoBitOfItCanBeChanged) {
  const Secret shared = secret("a secret of sixteen bytes");
  const std::size_t total = sizeof(wire::Hello) + sizeof(Tag) + sizeof(wire::Parameters) + 100 + sizeof(Tag);
  for (const bool towards_initiator : {false, true}) {
    for (std::size_t bit = 0; bit < total * 8; ++bit) {
      Meeting meeting(&shared, &shared);
      std::size_t passed = 0;
      const auto flip = [&](std::vector<std::byte>& bytes) {
        const std::size_t at = bit / 8;
        if (at >= passed && at < passed + bytes.size()) bytes[at - passed] ^= std::byte{1} << (bit % 8);
        passed += bytes.size();
      };
      (towards_initiator ? meeting.said_to_initiator : meeting.said_to_responder) = flip;
      meeting.run();
      EXPECT_FALSE(meeting.met()) << bit << (towards_initiator ? " to the initiator" : " to the responder");
    }
  }
}

TEST(Handshake, AnotherVersionIsRefusedWithBothVersions) {
  const Secret shared = secret("a secret of sixteen bytes");
  Handshake responder(Role::responder, *crypto, &shared, introduction(2)),
      initiator(Role::initiator, *crypto, &shared, introduction(1));
  wire::Hello hello{.version = 9, .role = 1, .has_secret = 1, .node = 1};
  std::vector<std::byte> out;
  const Status says = responder.receive(std::as_bytes(std::span(&hello, 1)), out);
  ASSERT_FALSE(says);
  EXPECT_THAT(says.error().message,
              HasSubstr(fmt::format("speaks version 9 of the handshake, this node version {}", kHandshakeVersion)));
  ASSERT_EQ(out.size(), sizeof(wire::Hello)) << "so that the other can say both, too";
  hello.role = 2;
  const Status also = initiator.receive(std::as_bytes(std::span(&hello, 1)), out);
  EXPECT_THAT(also.error().message, HasSubstr("version 9"));
}

TEST(Handshake, ParametersThatDifferAreNamedOnBothSides) {
  const Secret shared = secret("a secret of sixteen bytes");
  const auto differ = [&](auto change, std::string_view name, std::string_view theirs, std::string_view ours) {
    Introduction other = introduction(2);
    change(other.parameters);
    Meeting meeting(&shared, &shared, introduction(1), other);
    meeting.run();
    ASSERT_FALSE(meeting.initiator_says);
    ASSERT_FALSE(meeting.responder_says);
    for (const auto expected : {name, theirs, ours}) {
      EXPECT_THAT(meeting.initiator_says.error().message, HasSubstr(std::string(expected)));
      EXPECT_THAT(meeting.responder_says.error().message, HasSubstr(std::string(expected)));
    }
  };
  differ([](ClusterParameters& p) { p.base = 0x1000; }, "--base", "0x1000", "0x7d0000000000");
  differ([](ClusterParameters& p) { p.space_bytes = 1 << 20; }, "--space", "0x100000", "0x10000000000");
  differ([](ClusterParameters& p) { p.page_bytes = 1 << 25; }, "--page", "0x2000000", "0x200000");
}

TEST(Handshake, TwoNodesWithOneIdAreRefused) {
  Meeting meeting(nullptr, nullptr, introduction(5), introduction(5));
  meeting.run();
  EXPECT_THAT(meeting.responder_says.error().message, HasSubstr("node id is 5, and so is this node's"));
}

TEST(Handshake, AnEndpointAddressOfAnyLengthIsNotBelieved) {
  Introduction large = introduction(1);
  large.endpoint.resize(wire::kMostEndpointBytes + 1);
  Meeting meeting(nullptr, nullptr, large);
  meeting.run();
  ASSERT_FALSE(meeting.responder_says);
  EXPECT_THAT(meeting.responder_says.error().message, HasSubstr(fmt::format("{} bytes", wire::kMostEndpointBytes + 1)));
  EXPECT_LE(meeting.responder.wanted(), sizeof(wire::Parameters)) << "nothing is waited or allocated for";
}

}  // namespace
}  // namespace vmem::rdma
