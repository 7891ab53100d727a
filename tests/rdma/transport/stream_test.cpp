// A stream transport is safe against strangers, and changes its keys.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <sstream>

#include "campaign/seeds.hpp"
#include "rdma/transport/stream_node.hpp"

namespace vmem::rdma {
namespace {

using std::chrono::steady_clock;
using ::testing::HasSubstr;

// A plain socket connected to a transport's address.
FileDescriptor dial(const std::string& address) {
  const auto to = *SocketAddress::parse(address);
  FileDescriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(socket.get(), to.get(), to.size()), 0);
  (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

TEST(StreamTrust, NodesWithDifferentSecretsRefuseEachOther) {
  Node a, b;
  a.start_as(a.config(1, "", SecretFile().read()));
  b.start_as(b.config(2, "127.0.0.1:0", SecretFile().read()));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  a.send(peer, "early", {a.outgoing(1000, 1)}, a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_EQ(a.gone(peer)->reason, Reason::refused);
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("secret"));
  EXPECT_TRUE(b.receiver.announced.empty());
  EXPECT_EQ(b.events.size(), 0u);
}

TEST(StreamTrust, ANodeWithoutASecretDoesNotReachOneThatHasOne) {
  Node a, b;
  a.start_as(a.config(1, "", nullptr));
  b.start_as(b.config(2, "127.0.0.1:0", SecretFile().read()));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("secret"));
}

TEST(StreamTrust, WithoutASecretOnlyLoopbackAddressesAreUsed) {
  Node node;
  const auto made = create_stream_transport(node.config(1, "0.0.0.0:0", nullptr));
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message, HasSubstr("needs a secret"));
  node.start_as(node.config(1, "", nullptr));
  const auto peer = node.transport->connect("192.0.2.1:7000", node.later());
  ASSERT_FALSE(peer);
  EXPECT_THAT(peer.error().message, HasSubstr("needs a secret"));
}

// As if an attacker reflected a connection to its origin.
TEST(StreamTrust, ANodeDoesNotTalkToItself) {
  Node node;
  node.start_as(node.config(1, "127.0.0.1:0", SecretFile().read()));
  const PeerId peer = *node.transport->connect(node.transport->address(), node.later());
  ASSERT_TRUE(until({&node}, [&] { return node.gone(peer) != nullptr; }));
  EXPECT_THAT(node.gone(peer)->error.message, HasSubstr("an id of its own"));
}

TEST(StreamTrust, NodesOfDifferentAddressSpacesSayWhichOptionDiffers) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  StreamConfig other = a.config(1, "", keyring);
  other.parameters.page_bytes = std::uint64_t{4} << 20;
  a.start_as(other);
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("--page has to be equal"));
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("this node's 4MiB"));
}

TEST(StreamTrust, NodesWhoseAddressSpacesBeginElsewhereSayWhere) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  StreamConfig other = a.config(1, "", keyring);
  other.parameters.base = 0x7e0000000000;
  a.start_as(other);
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("the peer's start of the address space is 0x"));
  EXPECT_THAT(a.gone(peer)->error.message, HasSubstr("this node's 0x7e0000000000: --base"));
}

// A program with --remote uses daemons of any cluster.
TEST(StreamTrust, ANodeOfNoClusterSharesNoAddressesThatCouldDiffer) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  StreamConfig other = a.config(1, "", keyring);
  other.parameters.base = other.parameters.space_bytes = 0;
  a.start_as(other);
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  ASSERT_TRUE(a.transport->connect(b.transport->address(), a.later()));
  EXPECT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
}

// TCP ports that this process listens on. The kernel's tables list those of all processes.
std::size_t listening_ports() {
  std::set<std::string> own;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (target.starts_with("socket:[")) own.insert(target.substr(8, target.size() - 9));
  }
  std::size_t found = 0;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream columns(line);
      std::string slot, local, remote, state, queues, timer, retransmits, uid, timeout, inode;
      columns >> slot >> local >> remote >> state >> queues >> timer >> retransmits >> uid >> timeout >> inode;
      found += state == "0A" && own.contains(inode) ? 1 : 0;
    }
  }
  return found;
}

TEST(StreamTrust, WithoutASecretNoPortOpens) {
  const std::size_t before = listening_ports();
  Node a, b;
  a.start_as(a.config(1, "", nullptr));
  b.start_as(b.config(2, "127.0.0.1:0", nullptr));
  expect_service(a, b);
  EXPECT_EQ(listening_ports(), before);
}

TEST(StreamTrust, OverUnixSocketsEachEndWatchesTheOthersProcess) {
  Node a, b;
  a.start_as(a.config(1, "", nullptr));
  b.start_as(b.config(2, "127.0.0.1:0", nullptr));
  ASSERT_TRUE(a.transport->connect(b.transport->address(), a.later()));
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  for (const Node* node : {&a, &b}) EXPECT_NE(node->all<Connected>()[0].second.process, nullptr);
}

TEST(StreamTrust, OnlyOneListensOnASocketAndNothingOfItStaysBehind) {
  Node a, b;
  a.start_as(a.config(1, "127.0.0.1:0", nullptr));
  const std::string address = a.transport->address();
  const auto second = create_stream_transport(b.config(2, address, nullptr));
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message, HasSubstr("Address already in use"));
  a.stop();
  const std::string path = socket_path(*SocketAddress::parse(address))->sun_path;
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  EXPECT_NE(::access((path + ".lock").c_str(), F_OK), 0);
  b.start_as(b.config(2, address, nullptr));
}

TEST(StreamTrust, WhoOnlyConnectsListensNowhere) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const std::size_t before = listening_ports();
  a.start_as(a.config(1, "", keyring));
  expect_service(a, b);
  EXPECT_EQ(listening_ports(), before);
}

TEST(StreamTrust, RandomBytesChangeNothing) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  std::mt19937 random(test::printed_seed());
  // The beginning of a TLS handshake record: with it, half of the connections pass the first check.
  constexpr std::array<unsigned char, 5> kRecord{0x16, 0x03, 0x01, 0x01, 0x00};
  for (int round = 0; round < 500; ++round) {
    const FileDescriptor stranger = dial(b.transport->address());
    std::vector<unsigned char> bytes(random() % 4000 + 1);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    if (round % 2 == 0) std::copy_n(kRecord.begin(), std::min(bytes.size(), kRecord.size()), bytes.begin());
    (void)::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    b.step();
  }
  EXPECT_TRUE(b.receiver.announced.empty());
  EXPECT_EQ(b.events.size(), 0u);
  expect_service(a, b);
}

std::size_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * 4096;
}
// AddressSanitizer keeps up to 256 MiB of freed memory in quarantine.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t kMemoryOfStrangers = std::size_t{32 + 256} << 20;
#else
constexpr std::size_t kMemoryOfStrangers = std::size_t{32} << 20;
#endif

std::size_t descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(open), end(open)));
}

// VMEM_TEST_HOSTILE_CONNECTIONS connections send random bytes, begin a handshake, close at once or
// stay silent, while honest nodes exchange pages.
TEST(StreamTrust, StrangersWithoutEndCostNeitherMemoryNorDescriptorsNorService) {
  const char* const asked = std::getenv("VMEM_TEST_HOSTILE_CONNECTIONS");
  const int connections = asked == nullptr ? 3000 : std::atoi(asked);
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  std::mt19937 random(test::printed_seed());
  constexpr std::array<unsigned char, 5> kRecord{0x16, 0x03, 0x01, 0x01, 0x00};
  std::deque<FileDescriptor> silent;
  std::size_t pages = 0, memory = 0, open = 0;
  b.on_message = [&](const Message& message) { pages += TestNode::has_pattern(message.payload, 5) ? 1 : 0; };
  std::size_t sent = 0;
  for (int i = 0; i < connections; ++i) {
    if (i == connections / 10) memory = resident_bytes(), open = descriptors();
    FileDescriptor stranger = dial(b.transport->address());
    std::vector<unsigned char> bytes(random() % 600 + 1);
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    const auto kind = random() % 4;
    if (kind == 1) std::copy_n(kRecord.begin(), std::min(bytes.size(), kRecord.size()), bytes.begin());
    if (kind < 2) (void)::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (kind == 3) silent.push_back(std::move(stranger));
    if (silent.size() > 100) silent.pop_front();
    b.step();
    if (i % 500 != 0) continue;
    a.send(peer, "page", {a.outgoing(1 << 16, 5)}, a.later());
    ++sent;
    ASSERT_TRUE(until({&a, &b}, [&] { return pages == sent; }));
  }
  EXPECT_EQ(a.gone(peer), nullptr);
  EXPECT_LT(resident_bytes(), memory + kMemoryOfStrangers);
  EXPECT_LT(descriptors(), open + 64);
}

// Restores the descriptor limit on destruction.
class NoDescriptorsLeft {
 public:
  NoDescriptorsLeft() {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit none{.rlim_cur = 0, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  }
  ~NoDescriptorsLeft() { (void)::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(StreamTrust, ConnectionsThatCannotBeAcceptedDoNotFillTheLog) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UndefinedBehaviorSanitizer's check of types ends a process that has no descriptors left";
#endif
  Node b;
  b.start_as(b.config(2, "127.0.0.1:0", SecretFile().read()));
  const FileDescriptor waiting = dial(b.transport->address());
  ::testing::internal::CaptureStderr();
  {
    const NoDescriptorsLeft none;
    const auto until_then = steady_clock::now() + std::chrono::milliseconds(1'500);
    while (steady_clock::now() < until_then) b.step();
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("no connection can be accepted"));
  EXPECT_LE(std::ranges::count(said, '\n'), 5);
}

// A connection that was reset has no address, so no host's budget can pay for a handshake.
TEST(StreamTrust, AConnectionThatWasResetBeforeItWasAcceptedIsNotRead) {
  Node b;
  b.start_as(b.config(2, "127.0.0.1:0", SecretFile().read()));
  ::testing::internal::CaptureStderr();
  constexpr linger kReset{.l_onoff = 1, .l_linger = 0};
  for (int i = 0; i < 20; ++i) {
    const FileDescriptor stranger = dial(b.transport->address());
    (void)::send(stranger.get(), "no handshake", 12, MSG_NOSIGNAL);
    (void)::setsockopt(stranger.get(), SOL_SOCKET, SO_LINGER, &kReset, sizeof(kReset));
  }
  for (int i = 0; i < 100; ++i) b.step();
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(StreamTrust, ThoseThatSayNothingKeepNobodyOut) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  std::vector<FileDescriptor> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(dial(b.transport->address()));
    b.step();
  }
  expect_service(a, b);
}

TEST(StreamTrust, ThoseThatSayNothingAreGoneAfterTheHandshakesTime) {
  Node b;
  StreamConfig config = b.config(2, "127.0.0.1:0", SecretFile().read());
  config.handshake_us = 50'000;
  b.start_as(config);
  const FileDescriptor idle = dial(b.transport->address());
  char byte = 0;
  EXPECT_TRUE(until({&b}, [&] { return ::recv(idle.get(), &byte, 1, 0) == 0; }));
}

// The first bytes of a connecting node.
std::vector<unsigned char> client_hello(Node& from) {
  const FileDescriptor tap(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto any = *SocketAddress::parse("127.0.0.1:0");
  EXPECT_EQ(::bind(tap.get(), any.get(), any.size()) | ::listen(tap.get(), 8), 0);
  const PeerId peer = *from.transport->connect(SocketAddress::bound_to(tap.get())->text(), from.later());
  FileDescriptor taken;
  std::vector<unsigned char> hello(4096);
  ssize_t got = -1;
  EXPECT_TRUE(until({&from}, [&] {
    if (!taken) taken = FileDescriptor(::accept4(tap.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    return taken && (got = ::recv(taken.get(), hello.data(), hello.size(), 0)) > 100;
  }));
  from.transport->close(peer);
  EXPECT_TRUE(until({&from}, [&] { return from.gone(peer) != nullptr; }));
  hello.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return hello;
}

// Endless handshakes from several hosts, which use a node's processor time.
class Flood {
 public:
  Flood(Node& node, std::vector<unsigned char> hello) : node_(node), hello_(std::move(hello)) {}
  void step() {
    for (const char* source : {"127.0.0.2:0", "127.0.0.3:0", "127.0.0.4:0"}) {
      const auto from = *SocketAddress::parse(source), to = *SocketAddress::parse(node_.transport->address());
      FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      ASSERT_EQ(::bind(socket.get(), from.get(), from.size()), 0);
      ASSERT_EQ(::connect(socket.get(), to.get(), to.size()), 0);
      (void)::send(socket.get(), hello_.data(), hello_.size(), MSG_NOSIGNAL);
      sockets_.push_back(std::move(socket));
    }
    while (sockets_.size() > 90) sockets_.pop_front();
    node_.step();
  }

 private:
  Node& node_;
  const std::vector<unsigned char> hello_;
  std::deque<FileDescriptor> sockets_;
};

// With a fiftieth of the default limits, so that the flood exhausts them soon.
TEST(StreamTrust, ANewNodeConnectsWithinTwoSecondsDuringAFloodFromOtherHosts) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  StreamConfig config = b.config(2, "127.0.0.1:0", keyring);
  config.handshake_limits = {
      .host_us = 20'000, .host_us_per_s = 200'000, .all_us = 40'000, .all_us_per_s = 10'000, .most_us = 2'000'000};
  b.start_as(config);
  Flood flood(b, client_hello(a));
  for (int i = 0; i < 300; ++i) flood.step();
  // The first connection is new to the node; the others have authenticated before.
  for (int i = 0; i < 5; ++i) {
    a.events.clear();
    b.events.clear();
    const auto begun = steady_clock::now();
    const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
    ASSERT_TRUE(until({&a}, [&] {
      flood.step();
      return (a.connected() && b.connected()) || a.gone(peer) != nullptr;
    }));
    ASSERT_EQ(a.gone(peer), nullptr) << i << ": " << a.gone(peer)->error.message;
    EXPECT_LT(steady_clock::now() - begun, std::chrono::seconds(2));
    a.transport->close(peer);
    ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr && b.gone(b.peer()) != nullptr; }));
  }
}

// Uses bytes of a valid client, cut anywhere and with any byte changed.
TEST(StreamTrust, AHandshakeThatWasTamperedWithGetsNobodyIn) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  a.start_as(a.config(1, "", keyring));
  b.start_as(b.config(2, "127.0.0.1:0", keyring));
  const auto hello = client_hello(a);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    auto bytes = hello;
    if (round % 3 == 0) bytes.resize(random() % bytes.size());
    for (int i = 0; i < round % 4 && !bytes.empty(); ++i)
      bytes[random() % bytes.size()] ^= static_cast<unsigned char>(1u << random() % 8);
    const FileDescriptor stranger = dial(b.transport->address());
    (void)::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    b.step();
  }
  EXPECT_EQ(b.events.size(), 0u);
  expect_service(a, b);
}

// ---- TLS ----

TEST(Tls, ASenderChangesItsKeyAfterSoManyRecords) {
  const auto crypto = *Crypto::load();
  const auto context = *TlsContext::create(crypto, SecretFile().read(), 4);
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets), 0);
  const FileDescriptor client_end(sockets[0]), server_end(sockets[1]);
  const auto client = *TlsSession::create(context, TlsRole::client, client_end.get(), "");
  const auto server = *TlsSession::create(context, TlsRole::server, server_end.get(), "");
  for (bool done = false; !done;) {
    const auto one = client->handshake(), other = server->handshake();
    ASSERT_TRUE(one && other);
    done = *one && *other;
  }
  const std::vector<std::byte> from(1 << 20, std::byte{42});
  std::vector<std::byte> to(from.size());
  std::size_t sent = 0, received = 0;
  while (received < to.size()) {
    if (sent < from.size()) sent += client->write(ConstBytes(from).subspan(sent)).value();
    ASSERT_TRUE(client->flush());
    received += server->read(Bytes(to).subspan(received)).value();
  }
  EXPECT_EQ(from, to);
  EXPECT_GE(client->key_updates(), (from.size() >> 14) / 4 - 1);
}

TEST(Tls, ARecordThatWasChangedOnItsWayEndsTheConnection) {
  const auto crypto = *Crypto::load();
  const auto context = *TlsContext::create(crypto, SecretFile().read());
  int near[2], far[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, near), 0);
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, far), 0);
  const FileDescriptor client_end(near[0]), tap_near(near[1]), tap_far(far[0]), server_end(far[1]);
  const auto client = *TlsSession::create(context, TlsRole::client, client_end.get(), "");
  const auto server = *TlsSession::create(context, TlsRole::server, server_end.get(), "");
  // The attacker forwards all bytes, and changes one byte of the `tampered` direction.
  const auto pass = [](int from, int to, bool tampered) {
    std::array<unsigned char, 65536> bytes;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
    if (got <= 0) return;
    if (tampered) bytes[static_cast<std::size_t>(got) / 2] ^= 1;
    ASSERT_EQ(::send(to, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL), got);
  };
  for (bool done = false; !done;) {
    const auto one = client->handshake();
    pass(tap_near.get(), tap_far.get(), false);
    const auto other = server->handshake();
    pass(tap_far.get(), tap_near.get(), false);
    ASSERT_TRUE(one && other);
    done = *one && *other;
  }
  const std::vector<std::byte> page(10'000, std::byte{7});
  ASSERT_EQ(*client->write(page), page.size());
  ASSERT_TRUE(*client->flush());
  pass(tap_near.get(), tap_far.get(), true);
  std::vector<std::byte> to(page.size());
  const auto got = server->read(to);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().status, VMEM_ERROR_LOST);
}

}  // namespace
}  // namespace vmem::rdma
