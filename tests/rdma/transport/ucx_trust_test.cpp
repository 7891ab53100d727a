// Access to a UcxTransport, and the messages of an authenticated peer.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <random>

#include "campaign/seeds.hpp"
#include "rdma/transport/hand_made_peer.hpp"
#include "rdma/transport/mutated_address.hpp"
#include "rdma/transport/stream_node.hpp"
#include "rdma/transport/ucx/ucx.hpp"
#include "rdma/transport/ucx/ucx_exchange.hpp"
#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

struct UcxNode : SteadyNode {
  void start_as(std::uint64_t id, std::string listen, KeyringRef keyring) {
    receiver.deadline_us = clock.now_us() + 3600 * kSecondUs;
    auto made = create_ucx_transport({.self = {NodeId{id}, Incarnation{1}},
                                      .parameters = kParameters,
                                      .listen = std::move(listen),
                                      .keyring = std::move(keyring),
                                      .clock = &clock,
                                      .receiver = &receiver,
                                      .settings = {{"TLS", "tcp"}, {"NET_DEVICES", "lo"}}});
    ASSERT_TRUE(made) << made.error().message;
    start(*std::move(made));
  }
};

std::string introduction(std::uint32_t address_bytes, const std::string& addresses) {
  std::string bytes = "vmemucx1";
  bytes.append(24, '\0');
  bytes.append(reinterpret_cast<const char*>(&address_bytes), sizeof(address_bytes));
  bytes.append(4, '\0');
  return bytes + addresses;
}

TEST(UcxTrust, NodesWithTheSameSecretMeetAndKnowWhoProvedWhat) {
  const SecretFile file(SecretFile::line("team-a"));
  UcxNode a, b;
  a.start_as(1, "", file.read());
  b.start_as(2, "127.0.0.1:0", file.read());
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  EXPECT_EQ(b.all<Connected>()[0].second.identity, "team-a");
  a.send(peer, "page", {a.outgoing(1 << 20, 3)}, a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return b.count<Message>() == 1; }));
  EXPECT_TRUE(TestNode::has_pattern(b.all<Message>()[0].second.payload, 3));
}

TEST(UcxTrust, AnotherSecretIsRefused) {
  UcxNode a, b;
  a.start_as(1, "", SecretFile().read());
  b.start_as(2, "127.0.0.1:0", SecretFile().read());
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_EQ(a.gone(peer)->reason, Reason::refused);
  EXPECT_TRUE(b.events.empty());
}

TEST(UcxTrust, ASecretThatIsTakenOutEndsItsLinks) {
  const std::string old_line = SecretFile::line("old"), new_line = SecretFile::line("new");
  const SecretFile file(old_line + new_line);
  UcxNode a, b;
  a.start_as(1, "", SecretFile(old_line).read());
  b.start_as(2, "127.0.0.1:0", file.read());
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  file.write(new_line);
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr && b.gone(b.peer()) != nullptr; }));
  EXPECT_THAT(b.gone(b.peer())->error.message, HasSubstr("'old'"));
}

TEST(UcxTrust, AProvedPeerThatSaysNothingOfUcxIsRefused) {
  const KeyringRef keyring = SecretFile().read();
  UcxNode b;
  b.start_as(2, "127.0.0.1:0", keyring);
  const std::string huge(1 << 10, 'x');
  const std::string size_beyond("\xff\xff\xff\xff...", 7), size_zero(4, '\0');
  for (const std::string& said : {std::string(64, 'x'), introduction(0, ""), introduction(1u << 30, huge),
                                  introduction(7, size_beyond), introduction(3, "abc"), introduction(4, size_zero)}) {
    HandMadePeer stranger(keyring, b.transport->address());
    ASSERT_TRUE(until({&b}, [&] { return stranger.connected(); }));
    stranger.say(said);
    ASSERT_TRUE(until({&b}, [&] { return stranger.ended(); })) << said.size();
    stranger.leave();
  }
  EXPECT_EQ(b.count<Connected>(), 0u);
  UcxNode a;
  a.start_as(1, "", keyring);
  ASSERT_TRUE(a.transport->connect(b.transport->address(), a.later()));
  EXPECT_TRUE(until({&a, &b}, [&] { return a.connected() && b.count<Connected>() == 1; })) << "honest ones are served";
}

// Number of mutated addresses to try in each direction.
int mutations() {
  const char* const asked = std::getenv("VMEM_TEST_UCX_ADDRESSES");
  return asked == nullptr ? 25 : std::atoi(asked);
}

std::string introduction_of(const UcxAddress& address) {
  const auto size = static_cast<std::uint32_t>(address.size());
  std::string said(reinterpret_cast<const char*>(&size), sizeof(size));
  said.append(reinterpret_cast<const char*>(address.data()), address.size());
  return introduction(static_cast<std::uint32_t>(said.size()), said);
}

// Checked in another process, because a few in a hundred would crash this one.
TEST(UcxTrust, NoAddressOfAProvedPeerEndsTheProcess) {
  const auto seed = test::printed_seed();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  const KeyringRef keyring = SecretFile().read();
  AddressOwner owner;
  UcxNode a, b;
  a.start_as(1, "", keyring);
  b.start_as(2, "127.0.0.1:0", keyring);
  int refused = 0;
  for (int round = 0; round < mutations(); ++round) {
    for (const bool connects : {true, false}) {
      UcxNode& node = connects ? b : a;
      HandMadePeer hostile(keyring, connects ? b.transport->address() : "");
      if (!connects) {
        ASSERT_TRUE(a.transport->connect(hostile.address(), a.later()));
      }
      ASSERT_TRUE(until({&node}, [&] { return hostile.connected(); }));
      hostile.say(introduction_of(mutated(owner.address(), random)));
      // An address that UCX accepts leads to a worker that does not know the peer.
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
      bool ended = false;
      while (!ended && std::chrono::steady_clock::now() < end) {
        node.step();
        owner.worker().progress();
        ended = hostile.ended();
      }
      refused += ended ? 1 : 0;
      hostile.leave();
      for (int i = 0; i < 200; ++i) node.step();
    }
  }
  EXPECT_GT(refused, 0);
  a.events.clear();
  b.events.clear();
  ASSERT_TRUE(a.transport->connect(b.transport->address(), a.later()));
  EXPECT_TRUE(until({&a, &b}, [&] { return a.count<Connected>() == 1 && b.count<Connected>() == 1; }))
      << "honest ones are served";
}

TEST(UcxTrust, AnIntroductionInPiecesIsReadAsOne) {
  const KeyringRef keyring = SecretFile().read();
  UcxNode b;
  b.start_as(2, "127.0.0.1:0", keyring);
  HandMadePeer peer(keyring, b.transport->address());
  ASSERT_TRUE(until({&b}, [&] { return peer.connected(); }));
  const std::string said = introduction(6, std::string("\x09\0\0\0ab", 6));  // one byte too few
  for (const char byte : said) {
    peer.say({&byte, 1});
    for (int i = 0; i < 4; ++i) b.step();
  }
  EXPECT_TRUE(until({&b}, [&] { return peer.ended(); }));
}

}  // namespace
}  // namespace vmem::rdma
