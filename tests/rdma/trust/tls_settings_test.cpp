// A node's answers to unusual offers of a client that knows the secret, and how often keys change
// on the wire.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <tuple>

#include "rdma/transport/stream_node.hpp"
#include "rdma/transport/tap.hpp"
#include "rdma/trust/client_hello.hpp"
#include "rdma/trust/plain_tls_client.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

class TlsSettings : public testing::Test {
 protected:
  void SetUp() override { node_.start_as(node_.config(2, "127.0.0.1:0", keyring_)); }

  std::string identity() const { return "vmem 1 " + keyring_->own().name; }
  Key key() const { return (*TlsContext::create(*Crypto::load(), keyring_))->tls_key(keyring_->own()); }
  PlainTlsClient client(std::function<void(SSL_CTX*)> settings, std::uint32_t early_data = 0) {
    return {node_.transport->address(), {identity(), key(), early_data, std::move(settings)}};
  }
  // "" for success, or the reason.
  std::string shake_hands(PlainTlsClient& with) {
    EXPECT_TRUE(until({&node_}, [&] { return with.handshake(); }));
    return with.outcome();
  }
  // The node's first answer, as text.
  std::string answer_to(ClientHello hello) {
    hello.identity = identity();
    hello.key = key();
    const auto to = *SocketAddress::parse(node_.transport->address());
    const FileDescriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket.get(), to.get(), to.size()), 0);
    const auto record = hello.record();
    EXPECT_EQ(::send(socket.get(), record.data(), record.size(), MSG_NOSIGNAL), static_cast<ssize_t>(record.size()));
    std::array<unsigned char, 512> said{};
    ssize_t got = -1;
    EXPECT_TRUE(until({&node_}, [&] {
      got = ::recv(socket.get(), said.data(), said.size(), MSG_DONTWAIT);
      return got >= 0;
    }));
    if (got >= 7 && said[0] == 0x15) return fmt::format("alert {}", said[6]);
    // Headers of the record and the message, version, random, session id.
    const std::size_t at = 5 + 4 + 2 + 32 + 1 + said[43];
    if (got < 50 || said[0] != 0x16 || said[5] != 2) return "neither";
    return fmt::format("cipher {:04x}", said[at] << 8 | said[at + 1]);
  }

  const KeyringRef keyring_ = SecretFile().read();
  Node node_;
};

TEST_F(TlsSettings, AClientThatKnowsTheSecretIsLetInByTls13) {
  PlainTlsClient plain = client(nullptr);
  EXPECT_EQ(shake_hands(plain), "");
  EXPECT_STREQ(SSL_get_version(plain.ssl()), "TLSv1.3");
  EXPECT_EQ(answer_to({}), "cipher 1301");
}

TEST_F(TlsSettings, OlderVersionsAreRefusedThoughTheirKeyIsRight) {
  for (const int version : {TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION}) {
    PlainTlsClient old = client([version](SSL_CTX* context) {
      SSL_CTX_set_security_level(context, 0);
      SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
      SSL_CTX_set_max_proto_version(context, version);
      SSL_CTX_set_cipher_list(context, "PSK:ALL");
    });
    EXPECT_THAT(shake_hands(old), HasSubstr("protocol version")) << version;
  }
}

TEST_F(TlsSettings, AKeyWithoutDiffieHellmanIsRefused) {
  EXPECT_THAT(answer_to({.key_exchange_modes = {0}, .key_share = false}), HasSubstr("alert"));
  EXPECT_EQ(answer_to({.key_exchange_modes = {0, 1}}), "cipher 1301");
  PlainTlsClient both = client([](SSL_CTX* context) { SSL_CTX_set_options(context, SSL_OP_ALLOW_NO_DHE_KEX); });
  ASSERT_EQ(shake_hands(both), "");
  EXPECT_NE(SSL_get_negotiated_group(both.ssl()), NID_undef);
}

// AES-128-GCM and ChaCha20-Poly1305, in the client's order of preference.
TEST_F(TlsSettings, OfCiphersTwoAreAccepted) {
  EXPECT_EQ(answer_to({.ciphers = {0x1302, 0x1304, 0x1305, 0x1303, 0x1301}}), "cipher 1303");
  EXPECT_EQ(answer_to({.ciphers = {0x1302, 0x1304, 0x1305, 0x1301}}), "cipher 1301");
  EXPECT_EQ(answer_to({.ciphers = {0x1302}}), "alert 40");
  EXPECT_EQ(answer_to({.ciphers = {0x1304}}), "alert 40");
  EXPECT_EQ(answer_to({.ciphers = {0x1305}}), "alert 40");
}

TEST_F(TlsSettings, NoTicketIsGiven) {
  PlainTlsClient plain = client(nullptr);
  ASSERT_EQ(shake_hands(plain), "");
  // The node answers an invalid Hello with its own, and closes the connection.
  const std::string said(64, 'x');
  ASSERT_EQ(SSL_write(plain.ssl(), said.data(), static_cast<int>(said.size())), static_cast<int>(said.size()));
  ASSERT_TRUE(until({&node_}, [&] { return plain.drain(); }));
  EXPECT_EQ(plain.tickets(), 0u);
}

TEST_F(TlsSettings, EarlyDataIsNotTaken) {
  PlainTlsClient early = client(nullptr, 16384);
  const std::string said(64, 'x');
  std::size_t taken = 0;
  ASSERT_TRUE(until({&node_}, [&] { return SSL_write_early_data(early.ssl(), said.data(), said.size(), &taken) == 1; }))
      << openssl_words();
  ASSERT_EQ(shake_hands(early), "");
  EXPECT_EQ(SSL_get_early_data_status(early.ssl()), SSL_EARLY_DATA_REJECTED);
}

// ---- keys that change ----

TEST(TlsKeys, ByDefaultOneProtectsTwoToThe24Records) {
  const KeyringRef keyring = SecretFile().read();
  EXPECT_EQ(StreamConfig{}.tls_records_per_key, std::uint64_t{1} << 24);
  EXPECT_EQ((*TlsContext::create(*Crypto::load(), keyring))->records_per_key(), std::uint64_t{1} << 24);
}

// Size of a KeyUpdate record: message header, one byte of content, record type, and tag.
constexpr std::size_t kKeyUpdateBytes = 4 + 1 + 1 + 16;

// Key updates that `tap` recorded, in both directions.
std::pair<std::size_t, std::size_t> key_updates(const Tap& tap) {
  const auto count = [](const std::vector<TlsRecord>& records) {
    return static_cast<std::size_t>(std::ranges::count_if(
        records, [](const TlsRecord& each) { return each.type == 0x17 && each.bytes == kKeyUpdateBytes; }));
  };
  return {count(tap.forth()), count(tap.back())};
}

// Exchanges pages both ways between two nodes with `records_per_key`.
void exchange_pages(std::uint64_t records_per_key, std::size_t page_bytes, std::pair<std::size_t, std::size_t>& seen) {
  const KeyringRef keyring = SecretFile().read();
  Node a, b;
  StreamConfig config_a = a.config(1, "", keyring), config_b = b.config(2, "127.0.0.1:0", keyring);
  config_a.tls_records_per_key = config_b.tls_records_per_key = records_per_key;
  b.start_as(std::move(config_b));
  a.start_as(std::move(config_a));
  Tap tap(b.transport->address());
  const auto stepped = [&](auto done) {
    return until({&a, &b}, [&] {
      tap.step();
      return done();
    });
  };
  const PeerId peer = *a.transport->connect(tap.address(), a.later());
  ASSERT_TRUE(stepped([&] { return a.connected() && b.connected(); }));
  a.send(peer, "page", {a.outgoing(page_bytes, 3)}, a.later());
  b.send(b.peer(), "page", {b.outgoing(page_bytes, 4)}, b.later());
  ASSERT_TRUE(stepped([&] { return a.count<Message>() == 1 && b.count<Message>() == 1; }));
  EXPECT_TRUE(TestNode::has_pattern(b.all<Message>()[0].second.payload, 3));
  EXPECT_TRUE(TestNode::has_pattern(a.all<Message>()[0].second.payload, 4));
  seen = key_updates(tap);
}

TEST(TlsKeys, ATransportChangesThemInBothDirections) {
  constexpr std::size_t kPage = 1 << 20, kRecords = kPage / 16384;
  std::pair<std::size_t, std::size_t> seen;
  exchange_pages(4, kPage, seen);
  EXPECT_GE(seen.first, kRecords / 4 - 1);
  EXPECT_GE(seen.second, kRecords / 4 - 1);
  EXPECT_LE(seen.first, kRecords / 4 + 8);
  exchange_pages(kRecords * 4, kPage, seen);
  EXPECT_EQ(seen, std::pair(std::size_t{0}, std::size_t{0})) << "and no sooner";
}

}  // namespace
}  // namespace vmem::rdma
