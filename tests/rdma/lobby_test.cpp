// Handshakes over sockets, and what attackers do with them. Time passes when the test says so.
#include "rdma/lobby.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "rdma/secret_file.hpp"
#include "rdma/test_node.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

const CryptoRef crypto = *Crypto::load();

class LobbyTest : public ::testing::Test {
 protected:
  Lobby::Config config(std::uint64_t id, std::string listen, const KeyringRef& with) const {
    return {.crypto = crypto,
            .keyring = with,
            .self = {{NodeId{id}, Incarnation{1}}, {0x7d0000000000, 1ull << 40, 2 << 20}, std::vector<std::byte>(10)},
            .clock = &clock,
            .listen = std::move(listen),
            .most_visitors = 8};
  }
  std::unique_ptr<Lobby> make(std::uint64_t id, std::string listen, const KeyringRef& with) const {
    return *Lobby::create(config(id, std::move(listen), with));
  }
  template <class Done>
  [[nodiscard]] bool until(Done done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      server->progress(at_server);
      if (client) client->progress(at_client);
    }
    return true;
  }
  // A client that knows the secret gets through.
  void expect_service() {
    client = make(2, "", shared);
    at_client.clear();
    client->connect(1, *SocketAddress::parse(server->address()), clock.now_us() + kSecondUs);
    ASSERT_TRUE(until([&] { return !at_client.empty(); }));
    EXPECT_TRUE(at_client[0].acquaintance) << at_client[0].error.message;
    client.reset();
  }
  // A socket of somebody who speaks for himself.
  FileDescriptor stranger() const {
    const SocketAddress address = *SocketAddress::parse(server->address());
    FileDescriptor socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), address.get(), address.size()), 0);
    return socket;
  }
  static void say(const FileDescriptor& socket, ConstBytes bytes) {
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  std::size_t failures() const {
    return static_cast<std::size_t>(
        std::ranges::count_if(at_server, [](const Lobby::Outcome& outcome) { return !outcome.acquaintance; }));
  }

  ManualClock clock;
  const KeyringRef shared = SecretFile().read();
  std::unique_ptr<Lobby> server = make(1, "127.0.0.1:0", shared), client;
  std::vector<Lobby::Outcome> at_server, at_client;
};

TEST_F(LobbyTest, WhoKnowsTheSecretIsLetIn) {
  expect_service();
  ASSERT_TRUE(until([&] { return at_server.size() == 1; }));
  EXPECT_EQ(at_server[0].acquaintance->peer.node.id, NodeId{2});
}

TEST_F(LobbyTest, TheSameOverIpv6) {
  auto made = Lobby::create(config(1, "[::1]:0", shared));
  if (!made) GTEST_SKIP() << made.error().message;
  server = *std::move(made);
  EXPECT_THAT(server->address(), ::testing::StartsWith("[::1]:"));
  expect_service();
}

TEST_F(LobbyTest, AnotherSecretIsRefusedOnBothSides) {
  client = make(2, "", SecretFile().read());
  client->connect(1, *SocketAddress::parse(server->address()), clock.now_us() + kSecondUs);
  ASSERT_TRUE(until([&] { return !at_client.empty() && !at_server.empty(); }));
  EXPECT_THAT(at_client[0].error.message, HasSubstr("does not know this node's secret"));
  EXPECT_EQ(at_client[0].reason, Reason::refused);
  EXPECT_THAT(at_server[0].error.message, HasSubstr("before it proved to know the secret"));
}

TEST_F(LobbyTest, NoSecretIsRefusedOnBothSides) {
  client = make(2, "", nullptr);
  client->connect(1, *SocketAddress::parse(server->address()), clock.now_us() + kSecondUs);
  ASSERT_TRUE(until([&] { return !at_client.empty() && !at_server.empty(); }));
  EXPECT_THAT(at_client[0].error.message, HasSubstr("the peer has a secret, this node none"));
  EXPECT_THAT(at_server[0].error.message, HasSubstr("the peer has no secret, this node one"));
}

TEST_F(LobbyTest, WithoutASecretOnlyThisMachineIsSpokenWith) {
  for (const char* address : {"0.0.0.0:0", "10.0.0.1:0", "[::]:0"}) {
    const auto made = Lobby::create(config(1, address, nullptr));
    ASSERT_FALSE(made) << address;
    EXPECT_EQ(made.error().status, VMEM_ERROR_INVALID_OPTION);
    EXPECT_THAT(made.error().message, HasSubstr("needs a secret"));
  }
  const auto alone = make(2, "127.0.0.1:0", nullptr);
  EXPECT_TRUE(alone->may_connect(*SocketAddress::parse("127.1.2.3:1")));
  EXPECT_TRUE(alone->may_connect(*SocketAddress::parse("[::1]:1")));
  EXPECT_TRUE(alone->may_connect(*SocketAddress::parse("[::ffff:127.0.0.1]:1")));
  EXPECT_FALSE(alone->may_connect(*SocketAddress::parse("10.0.0.1:1")));
  EXPECT_FALSE(alone->may_connect(*SocketAddress::parse("[fe80::1]:1")));
  EXPECT_FALSE(alone->may_connect(*SocketAddress::parse("[::ffff:10.0.0.1]:1")));
  EXPECT_TRUE(server->may_connect(*SocketAddress::parse("10.0.0.1:1")));
}

TEST_F(LobbyTest, GarbageIsRefusedAtOnce) {
  const FileDescriptor socket = stranger();
  say(socket, bytes_of("GET / HTTP/1.1\r\nHost: vmem\r\nUser-Agent: a browser, perhaps, or a scanner\r\n\r\n"));
  ASSERT_TRUE(until([&] { return failures() == 1; }));
  EXPECT_THAT(at_server[0].error.message, HasSubstr("no vmem node"));
  char byte = 0;
  EXPECT_LE(::recv(socket.get(), &byte, 1, 0), 0) << "nothing is said to it";
  expect_service();
}

TEST_F(LobbyTest, WhoSaysNothingHoldsNobodyUpAndIsShownOut) {
  const FileDescriptor socket = stranger();
  expect_service();
  EXPECT_EQ(failures(), 0u);
  clock.advance(5 * kSecondUs);
  ASSERT_TRUE(until([&] { return failures() == 1; }));
  EXPECT_EQ(at_server.back().reason, Reason::timeout);
}

TEST_F(LobbyTest, OneByteASecondHoldsNobodyUpAndGainsNoTime) {
  const FileDescriptor socket = stranger();
  const wire::Hello hello{.role = 1, .has_secret = 1, .node = 7};
  const ConstBytes bytes = std::as_bytes(std::span(&hello, 1));
  for (std::size_t i = 0; i < 4; ++i) {
    say(socket, bytes.subspan(i, 1));
    expect_service();
    clock.advance(kSecondUs);
  }
  EXPECT_EQ(failures(), 0u);
  say(socket, bytes.subspan(4, 1));
  clock.advance(kSecondUs);
  ASSERT_TRUE(until([&] { return failures() == 1; }));
}

TEST_F(LobbyTest, ACrowdAtTheDoorDoesNotKeepOutWhoKnowsTheSecret) {
  std::vector<FileDescriptor> crowd;
  for (int i = 0; i < 50; ++i) {
    crowd.push_back(stranger());
    server->progress(at_server);
  }
  ASSERT_TRUE(until([&] { return failures() >= 42; })) << "no more than eight are kept waiting";
  expect_service();
}

TEST_F(LobbyTest, AnotherVersionIsSaidBeforeItIsRefused) {
  const FileDescriptor socket = stranger();
  const wire::Hello hello{.version = kHandshakeVersion + 1, .role = 1, .has_secret = 1, .node = 7};
  say(socket, std::as_bytes(std::span(&hello, 1)));
  ASSERT_TRUE(until([&] { return failures() == 1; }));
  EXPECT_THAT(at_server[0].error.message, HasSubstr(fmt::format("version {} of the handshake, this node version {}",
                                                                kHandshakeVersion + 1, kHandshakeVersion)));
  wire::Hello answer;
  ASSERT_EQ(::recv(socket.get(), &answer, sizeof(answer), MSG_WAITALL), static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(answer.version, kHandshakeVersion);
  EXPECT_EQ(::recv(socket.get(), &answer, 1, 0), 0) << "no proof for it";
}

TEST_F(LobbyTest, WhatIsNoAddressIsRefusedByName) {
  for (const char* text :
       {"", "host", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "not-numeric:1", "::1:1", "127.0.0.1:99999"}) {
    const auto parsed = SocketAddress::parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error().message, HasSubstr(std::string("'") + text + "'"));
  }
  const SocketAddress named = *SocketAddress::resolve("localhost:5");
  EXPECT_THAT(named.text(), ::testing::StartsWith("localhost/"));
  EXPECT_EQ(named.host(), "localhost");
  EXPECT_EQ(SocketAddress::parse(named.text())->text(), named.text());
  EXPECT_EQ(SocketAddress::resolve("[::1]:5")->text(), "[::1]:5");
  EXPECT_EQ(SocketAddress::resolve("[::1]:5")->host(), "::1");
}

// Which does not know of it, and neither closes it nor reads it.
TEST_F(LobbyTest, AVisitorWhoseSocketAForkedProcessHasTooIsForgotten) {
  const FileDescriptor socket = stranger();
  server->progress(at_server);
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  say(socket, std::vector<std::byte>(64));
  ASSERT_TRUE(until([&] { return failures() == 1; }));
  pollfd watched{.fd = socket.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&watched, 1, 5000), 1) << "it is told that it was refused";
  char any = 0;
  EXPECT_LE(::recv(socket.get(), &any, 1, MSG_DONTWAIT), 0);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(server->progress(at_server)) << "there is nothing any more";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  expect_service();
}

// What this node has opened the peer may be connecting to.
class LeavingLobby : public LobbyTest {
 protected:
  // A client that has proved itself, and leaves.
  void SetUp() override {
    Lobby::Config with = config(2, "", shared);
    with.open = [this] {
      const auto owner = std::make_shared<int>();
      opened = owner;
      return Entrance{std::vector<std::byte>(10), owner};
    };
    client = *Lobby::create(std::move(with));
    client->connect(1, *SocketAddress::parse(server->address()), clock.now_us() + kSecondUs);
    ASSERT_TRUE(until([&] { return !opened.expired(); }));
    client->cancel(1);
    for (int i = 0; i < 3; ++i) client->progress(at_client);
    EXPECT_TRUE(at_client.empty());
    EXPECT_FALSE(opened.expired());
  }
  std::weak_ptr<int> opened;
};
TEST_F(LeavingLobby, WhatItHasOpenedStaysUntilThePeerHasLeft) {
  ASSERT_TRUE(until([&] { return !at_server.empty(); }));
  client->progress(at_client);
  EXPECT_FALSE(opened.expired());
  at_server.clear();  // its socket too
  ASSERT_TRUE(until([&] { return opened.expired(); }));
  EXPECT_TRUE(client->empty());
  EXPECT_TRUE(server->empty());
}
TEST_F(LeavingLobby, ButNotForLongerThanATenthOfASecond) {
  clock.advance(99'000);
  client->progress(at_client);
  EXPECT_FALSE(opened.expired());
  clock.advance(1'000);
  client->progress(at_client);
  EXPECT_TRUE(opened.expired());
}
TEST_F(LeavingLobby, AndIsLeftByOneThatEnds) {
  server->close();
  ASSERT_TRUE(until([&] { return opened.expired() && server->empty(); }));
  EXPECT_EQ(failures(), 1u);
}

}  // namespace
}  // namespace vmem::rdma
