// Two processes, one of which is killed, stopped or cut off while payloads are in flight. All
// operations end, in time.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <random>

#include "campaign/seeds.hpp"
#include "rdma/transport/other_network.hpp"
#include "rdma/transport/peer_process.hpp"
#include "rdma/transport/stream_pair.hpp"
#include "rdma/transport/test_node.hpp"
#include "rdma/transport/test_transport.hpp"

namespace vmem::rdma {
namespace {

using std::chrono::steady_clock;

constexpr std::size_t kPayload = std::size_t{8} << 20;

// With several channels, each has a thread of its own.
struct Kind {
  std::string transport;
  std::uint32_t channels = 1;
  bool secret = false;
};

std::string name_of(const ::testing::TestParamInfo<Kind>& of) {
  return fmt::format("{}{}Channels{}", of.param.transport, of.param.secret ? "Tls" : "", of.param.channels);
}

class TwoProcesses : public ::testing::TestWithParam<Kind> {
 protected:
  // A peer's arguments: role, address, secret, channels, transport.
  std::vector<std::string> as(std::string role, std::string address) const {
    return {std::move(role), std::move(address), GetParam().secret ? secret.path() : "-",
            std::to_string(GetParam().channels), GetParam().transport};
  }
  void start(const std::string& listen) { start(listen, GetParam().secret ? secret.read() : nullptr); }
  void start(const std::string& listen, KeyringRef with) {
    auto made = make_test_transport({.kind = GetParam().transport,
                                     .self = {NodeId{1}, Incarnation{1}},
                                     .listen = listen,
                                     .keyring = std::move(with),
                                     .channels = GetParam().channels},
                                    clock, node.receiver);
    ASSERT_TRUE(made) << made.error().message;
    node.start(*std::move(made));
    node.receiver.deadline_us = in(3600);
  }
  std::uint64_t in(std::uint64_t s) const { return clock.now_us() + s * kSecondUs; }
  template <class Done>
  [[nodiscard]] bool until(Done done, int most_s = 20) {
    const auto end = steady_clock::now() + std::chrono::seconds(most_s);
    while (!done()) {
      if (steady_clock::now() > end) return false;
      if (!node.step()) node.transport->idle(1000);
    }
    return true;
  }
  // Connects to a peer, and posts three more payloads once one of the first three has arrived.
  void transfer_to(PeerProcess& peer) {
    const auto connected = node.transport->connect(peer.address(), in(20));
    ASSERT_TRUE(connected) << connected.error().message;
    to = *connected;
    for (unsigned i = 0; i < 3; ++i) send(in(3600));
    ASSERT_TRUE(until([&] { return node.count<Sent>() > 0; }));
    for (unsigned i = 0; i < 3; ++i) send(in(3600));
  }
  void send(std::uint64_t deadline_us) { node.send(to, "payload", {node.outgoing(kPayload, 1)}, deadline_us); }
  // Waits until a sending peer is in the middle of a transfer to this node.
  void transfer_from(PeerProcess&) {
    ASSERT_TRUE(until([&] { return node.count<Message>() > 2 && !node.receiver.claimed.empty(); }));
    to = node.peer();
  }
  void expect_nothing_under_way(Reason reason) {
    ASSERT_NE(node.gone(to), nullptr);
    EXPECT_EQ(node.gone(to)->reason, reason) << node.gone(to)->error.message;
    EXPECT_TRUE(node.under_way.empty());
    EXPECT_TRUE(node.receiver.claimed.empty());
  }

  SecretFile secret;
  SteadyClock clock;
  TestNode node;
  PeerId to{};
};

constexpr const char* kAny = "127.0.0.1:0";

TEST_P(TwoProcesses, AReceiverThatIsKilledIsNoticedAndAllSendsEnd) {
  PeerProcess peer(as("listen", kAny));
  start("");
  transfer_to(peer);
  peer.signal(SIGKILL);
  ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
  expect_nothing_under_way(Reason::lost);
}

TEST_P(TwoProcesses, ASenderThatIsKilledIsNoticedAndAllClaimsAreGivenBack) {
  start(kAny);
  PeerProcess peer(as("connect", node.transport->address()));
  transfer_from(peer);
  peer.signal(SIGKILL);
  ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
  expect_nothing_under_way(Reason::lost);
}

TEST_P(TwoProcesses, AStoppedReceiverEndsAtTheDeadline) {
  PeerProcess peer(as("listen", kAny));
  start("");
  transfer_to(peer);
  peer.stop();
  const std::uint64_t deadline = clock.now_us() + kSecondUs / 5;
  send(deadline);
  ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
  expect_nothing_under_way(Reason::timeout);
  EXPECT_GE(clock.now_us(), deadline);
  EXPECT_LT(clock.now_us(), deadline + kSecondUs) << "what was under way ended with it";
  peer.signal(SIGCONT);
  ASSERT_TRUE(until([&] {
    return std::ranges::any_of(peer.said(), [](const std::string& line) { return line.starts_with("gone"); });
  })) << "it learns why when it goes on";
  EXPECT_THAT(peer.said(), ::testing::Contains(::testing::HasSubstr("a deadline passed there")));
}

TEST_P(TwoProcesses, AStoppedSenderEndsAtTheClaimsDeadline) {
  start(kAny);
  PeerProcess peer(as("connect", node.transport->address()));
  ASSERT_TRUE(until([&] { return node.connected(); }));
  to = node.peer();
  bool stopped = false;
  node.on_message = [&](const Message&) {
    if (!std::exchange(stopped, true)) peer.stop();
    node.receiver.deadline_us = clock.now_us() + kSecondUs / 5;
  };
  ASSERT_TRUE(until([&] { return stopped; }));
  // If no other payload was announced, the timeout is that of our message.
  send(clock.now_us() + kSecondUs / 5);
  ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
  expect_nothing_under_way(Reason::timeout);
}

// When the stopped peer resumes, this node's next poll finds everything at once: the peer has read,
// written and closed its connections. UCX 1.13 alone would crash this process.
TEST_P(TwoProcesses, AStoppedReceiverThatGoesOnHarmsNobodyAndIsConnectedToAgain) {
  PeerProcess peer(as("listen", kAny));
  start("");
  for (int round = 0; round < 5; ++round) {
    node.events.clear();
    transfer_to(peer);
    peer.stop();
    send(clock.now_us() + kSecondUs / 20);
    ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
    expect_nothing_under_way(Reason::timeout);
    peer.signal(SIGCONT);
    ASSERT_TRUE(peer.says("gone", static_cast<std::size_t>(round)));
  }
  node.events.clear();
  transfer_to(peer);
}

TEST_P(TwoProcesses, AfterAPeerIsLostAnotherOneIsServed) {
  start("");
  for (int round = 0; round < 3; ++round) {
    node.events.clear();
    PeerProcess peer(as("listen", kAny));
    transfer_to(peer);
    peer.signal(SIGKILL);
    ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
    expect_nothing_under_way(Reason::lost);
  }
}

// VMEM_TEST_KILLS: how often a process leaves or is killed; more takes longer.
int rounds_or(int usual) {
  const char* given = std::getenv("VMEM_TEST_KILLS");
  return given == nullptr ? usual : std::atoi(given);
}

// UCX 1.13 aborts a process that creates an endpoint to a worker which has connected to it and is
// already destroyed.
TEST_P(TwoProcesses, NobodyIsHarmedByOneThatLeavesWhileItConnects) {
  const int rounds = rounds_or(60);
  const auto seed = test::printed_seed();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  PeerProcess peer(as("listen", kAny));
  start("");
  // About the time to connect on this machine.
  std::uint64_t takes_us = 4000;
  for (int round = 0; round < rounds; ++round) {
    node.events.clear();
    const std::uint64_t began = clock.now_us();
    to = *node.transport->connect(peer.address(), in(20));
    const std::uint64_t leave = began + random() % (takes_us + takes_us / 2);
    ASSERT_TRUE(until([&] {
      if (node.connected() && clock.now_us() < leave) takes_us = std::min(takes_us, clock.now_us() - began);
      return clock.now_us() >= leave || node.gone(to) != nullptr;
    }));
    if (!node.connected()) takes_us += takes_us / 8;
    node.transport->close(to);
    ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
    ASSERT_EQ(node.gone(to)->reason, Reason::closed) << round << ": " << node.gone(to)->error.message;
  }
  const auto left =
      std::ranges::count_if(peer.said(), [](const std::string& line) { return line.starts_with("gone"); });
  EXPECT_GE(left, rounds / 20) << "so many came so far that there was something to leave";
  node.events.clear();
  transfer_to(peer);
}

// A killed peer sends nothing; the kernel closes its sockets in the order they were opened.
TEST_P(TwoProcesses, NobodyIsHarmedByOneThatIsKilledWhileItConnects) {
  const int rounds = rounds_or(20);
  const auto seed = test::printed_seed();
  SCOPED_TRACE(fmt::format("seed {}", seed));
  std::mt19937 random(seed);
  start(kAny);
  const std::uint64_t began = clock.now_us();
  {
    PeerProcess peer(as("connect", node.transport->address()));
    ASSERT_TRUE(until([&] { return node.connected(); }));
  }
  const std::uint64_t takes_us = clock.now_us() - began;
  for (int round = 0; round < rounds; ++round) {
    PeerProcess peer(as("connect", node.transport->address()));
    const std::uint64_t kill = clock.now_us() + takes_us / 2 + random() % (takes_us * 3 / 4);
    ASSERT_TRUE(until([&] { return clock.now_us() >= kill; }));
    peer.signal(SIGKILL);
    // Some peers are gone without having connected.
    ASSERT_TRUE(until([&] {
      return std::ranges::all_of(node.all<Connected>(),
                                 [&](const auto& one) { return node.gone(one.first) != nullptr; });
    }));
  }
  node.events.clear();
  PeerProcess peer(as("connect", node.transport->address()));
  transfer_from(peer);
}

// Not over shared memory, which nodes do not use: a killed writer can block the survivor's queue.
INSTANTIATE_TEST_SUITE_P(All, TwoProcesses,
                         ::testing::Values(Kind{"ucx", 1}, Kind{"ucx", 3}, Kind{"stream", 1}, Kind{"stream", 3},
                                           Kind{"stream", 1, true}, Kind{"stream", 3, true}),
                         name_of);

// Two network namespaces connected by a veth pair.
class CutOff : public TwoProcesses {
 protected:
  void SetUp() override {
    if (!network.why_not().empty()) GTEST_SKIP() << network.why_not();
  }
  void TearDown() override { node.stop(); }
  void start_node(const std::string& listen) { start(listen, *Keyring::open(network.secret())); }

  std::vector<std::string> as(std::string role, std::string address, std::string secret_file) const {
    return {std::move(role), std::move(address), std::move(secret_file), std::to_string(GetParam().channels),
            GetParam().transport};
  }

  OtherNetwork network;
};

TEST_P(CutOff, AReceiverBehindACutNetworkEndsAtTheDeadlineWithBytesInFlight) {
  PeerProcess peer(as("listen", "10.77.0.2:0", network.secret()), network.name());
  start_node("");
  transfer_to(peer);
  ASSERT_TRUE(network.cut());
  const std::uint64_t deadline = clock.now_us() + kSecondUs / 2;
  send(deadline);
  ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
  expect_nothing_under_way(Reason::timeout);
  EXPECT_LT(clock.now_us(), deadline + kSecondUs);
}

TEST_P(CutOff, ASenderBehindACutNetworkEndsAtTheClaimsDeadline) {
  start_node("10.77.0.1:0");
  PeerProcess peer(as("connect", node.transport->address(), network.secret()), network.name());
  node.receiver.deadline_us = clock.now_us() + 5 * kSecondUs;
  ASSERT_TRUE(until([&] { return node.count<Message>() > 0 && !node.receiver.claimed.empty(); }));
  to = node.peer();
  ASSERT_TRUE(network.cut());
  node.receiver.deadline_us = clock.now_us() + kSecondUs / 2;
  send(clock.now_us() + kSecondUs / 2);
  ASSERT_TRUE(until([&] { return node.gone(to) != nullptr; }));
  expect_nothing_under_way(Reason::timeout);
}

INSTANTIATE_TEST_SUITE_P(All, CutOff,
                         ::testing::Values(Kind{"ucx", 1}, Kind{"ucx", 3}, Kind{"stream", 1, true},
                                           Kind{"stream", 3, true}),
                         name_of);

}  // namespace
}  // namespace vmem::rdma
