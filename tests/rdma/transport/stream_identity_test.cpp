// How a node identifies itself: secrets by identity, which are added and removed, and certificates.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "rdma/transport/hand_made_peer.hpp"
#include "rdma/transport/stream_node.hpp"
#include "rdma/trust/certificate_folder.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

// Steps both until `a` loses its peer, and returns the reason.
std::string refusal(Node& a, Node& b) {
  const auto peer = a.transport->connect(b.transport->address(), a.later());
  if (!peer) return peer.error().message;
  a.events.clear();
  if (!until({&a, &b}, [&] { return a.gone(*peer) != nullptr || a.connected(); })) return "nothing happened";
  return a.gone(*peer) != nullptr ? a.gone(*peer)->error.message : "accepted";
}

std::string identity_at(const Node& node) { return node.all<Connected>().front().second.identity; }

void expect_identity(Node& a, Node& b, const std::string& at_a, const std::string& at_b) {
  a.events.clear();
  b.events.clear();
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected() && b.connected(); }));
  EXPECT_EQ(identity_at(a), at_a);
  EXPECT_EQ(identity_at(b), at_b);
  a.transport->close(peer);
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr && b.gone(b.peer()) != nullptr; }));
}

TEST(StreamIdentity, ANodeIsKnownByTheSecretThatItProved) {
  const std::string a_line = SecretFile::line("team-a"), b_line = SecretFile::line("team-b");
  Node a, b, lender;
  lender.start_as(lender.config(9, "127.0.0.1:0", SecretFile(a_line + b_line).read()));
  a.start_as(a.config(1, "", SecretFile(a_line).read()));
  b.start_as(b.config(2, "", SecretFile(b_line).read()));
  expect_identity(a, lender, "team-a", "team-a");
  expect_identity(b, lender, "team-b", "team-b");
}

TEST(StreamIdentity, OneTenantsKeyUnderAnothersNameIsRefused) {
  const std::string a_line = SecretFile::line("team-a"), b_line = SecretFile::line("team-b");
  Node b, lender;
  lender.start_as(lender.config(9, "127.0.0.1:0", SecretFile(a_line + b_line).read()));
  b.start_as(b.config(2, "", SecretFile(fmt::format("team-a {}", b_line.substr(7))).read()));
  EXPECT_THAT(refusal(b, lender), HasSubstr("does not know the secret 'team-a'"));
  EXPECT_EQ(lender.events.size(), 0u);
}

TEST(StreamIdentity, HalfMadeLinksOfOneTenantEndNoneOfAnother) {
  const std::string a_line = SecretFile::line("team-a"), b_line = SecretFile::line("team-b");
  Node lender;
  StreamConfig config = lender.config(9, "127.0.0.1:0", SecretFile(a_line + b_line).read());
  config.handshake_us = 60 * kSecondUs;
  lender.start_as(config);
  const KeyringRef keyring = SecretFile(a_line).read();
  HandMadePeer other(SecretFile(b_line).read(), lender.transport->address());
  ASSERT_TRUE(until({&lender}, [&] { return other.connected(0); }));
  std::vector<std::unique_ptr<HandMadePeer>> half_made;
  for (std::size_t i = 0; i < kMostHalfMadeLinks + 1; ++i) {
    half_made.push_back(std::make_unique<HandMadePeer>(keyring, lender.transport->address()));
    ASSERT_TRUE(until({&lender}, [&] { return half_made.back()->connected(0); }));
  }
  ASSERT_TRUE(until({&lender}, [&] { return half_made.front()->ended(0); }));
  other.join(1);
  ASSERT_TRUE(until({&lender}, [&] { return other.connected(1) && lender.connected(); }));
  EXPECT_EQ(identity_at(lender), "team-b");
}

TEST(StreamIdentity, ASecretIsReplacedWhileNodesRun) {
  const std::string old_line = SecretFile::line("team"), new_line = SecretFile::line("team#2");
  const SecretFile at_lender(old_line), at_client(old_line);
  Node a, lender;
  lender.start_as(lender.config(9, "127.0.0.1:0", at_lender.read()));
  a.start_as(a.config(1, "", at_client.read()));
  expect_identity(a, lender, "team", "team");
  const PeerId peer = *a.transport->connect(lender.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &lender}, [&] { return a.connected() && lender.connected(); }));

  at_lender.write(old_line + new_line);
  at_client.write(new_line);
  ASSERT_TRUE(until({&a, &lender}, [&] { return a.gone(peer) != nullptr; })) << "the secret that it proved is gone";
  expect_identity(a, lender, "team", "team");

  at_lender.write(new_line);
  expect_identity(a, lender, "team", "team");
}

TEST(StreamIdentity, ASecretThatIsTakenOutEndsItsConnections) {
  const std::string a_line = SecretFile::line("team-a"), b_line = SecretFile::line("team-b");
  const SecretFile at_lender(a_line + b_line);
  Node a, b, lender;
  lender.start_as(lender.config(9, "127.0.0.1:0", at_lender.read()));
  a.start_as(a.config(1, "", SecretFile(a_line).read()));
  b.start_as(b.config(2, "", SecretFile(b_line).read()));
  const PeerId of_a = *a.transport->connect(lender.transport->address(), a.later());
  const PeerId of_b = *b.transport->connect(lender.transport->address(), b.later());
  ASSERT_TRUE(until({&a, &b, &lender}, [&] { return a.connected() && b.connected(); }));

  at_lender.write(b_line);
  ASSERT_TRUE(until({&a, &b, &lender}, [&] { return a.gone(of_a) != nullptr; }));
  EXPECT_EQ(b.gone(of_b), nullptr);
  EXPECT_THAT(refusal(a, lender), HasSubstr("secret 'team-a'"));
}

// ---- certificates ----

struct Certified {
  Node& node;
  Certified(Node& of, std::uint64_t id, const std::string& listen, const std::string& folder) : node(of) {
    StreamConfig config = of.config(id, listen, nullptr);
    config.certificates = *Certificates::open(folder);
    of.start_as(std::move(config));
  }
};

TEST(StreamCertificates, NodesOfOneAuthorityTrustEachOtherByName) {
  Authority authority;
  Node a, b;
  Certified(a, 1, "", authority.issue("DNS:trainer,URI:vmem://trainer"));
  Certified(b, 2, "127.0.0.1:0", authority.issue("DNS:gpu07,IP:127.0.0.1"));
  expect_identity(a, b, "gpu07", "trainer");
  expect_service(a, b);
}

TEST(StreamCertificates, AServerHasToBeTheHostThatWasAskedFor) {
  Authority authority;
  Node a, b;
  Certified(a, 1, "", authority.issue("DNS:trainer"));
  Certified(b, 2, "127.0.0.1:0", authority.issue("DNS:gpu07"));
  EXPECT_THAT(refusal(a, b), HasSubstr("IP address mismatch"));
  // As SocketAddress::resolve writes it after looking up gpu07.
  const PeerId peer = *a.transport->connect("gpu07/" + b.transport->address(), a.later());
  a.events.clear();
  ASSERT_TRUE(until({&a, &b}, [&] { return a.connected(); })) << a.gone(peer)->error.message;
}

TEST(StreamCertificates, AnotherAuthorityIsRefused) {
  Authority ours, theirs;
  Node a, b;
  Certified(a, 1, "", theirs.issue("DNS:trainer"));
  Certified(b, 2, "127.0.0.1:0", ours.issue("IP:127.0.0.1"));
  EXPECT_THAT(refusal(a, b), HasSubstr("certificate"));
  EXPECT_EQ(b.events.size(), 0u);
}

TEST(StreamCertificates, AClientOfAnotherAuthorityIsRefusedByTheServer) {
  Authority ours, theirs;
  const std::string folder = theirs.issue("DNS:trainer");
  const std::string server = ours.issue("IP:127.0.0.1");
  // The node trusts the server's authority, but the server does not trust the node's.
  std::filesystem::copy_file(server + "/ca.crt", folder + "/ca.crt", std::filesystem::copy_options::overwrite_existing);
  Node a, b;
  Certified(a, 1, "", folder);
  Certified(b, 2, "127.0.0.1:0", server);
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_EQ(b.events.size(), 0u);
}

TEST(StreamCertificates, ACertificateWithoutANameIsRefused) {
  Authority authority;
  Node a, b;
  Certified(a, 1, "", authority.issue(""));
  Certified(b, 2, "127.0.0.1:0", authority.issue("IP:127.0.0.1"));
  const PeerId peer = *a.transport->connect(b.transport->address(), a.later());
  ASSERT_TRUE(until({&a, &b}, [&] { return a.gone(peer) != nullptr; }));
  EXPECT_EQ(b.events.size(), 0u);
}

TEST(StreamCertificates, NodesWithSecretsAndNodesWithCertificatesRefuseEachOther) {
  Authority authority;
  Node a, b;
  a.start_as(a.config(1, "", SecretFile().read()));
  Certified(b, 2, "127.0.0.1:0", authority.issue("IP:127.0.0.1"));
  EXPECT_THAT(refusal(a, b), HasSubstr("secret"));
  EXPECT_EQ(b.events.size(), 0u);
  Node c, d;
  Certified(c, 1, "", authority.issue("IP:127.0.0.1"));
  d.start_as(d.config(2, "127.0.0.1:0", SecretFile().read()));
  EXPECT_THAT(refusal(c, d), HasSubstr("certificate"));
  EXPECT_EQ(d.events.size(), 0u);
}

TEST(StreamCertificates, AReplacedCertificateIsUsedByTheNextConnections) {
  Authority authority;
  const std::string folder = authority.issue("DNS:before,IP:127.0.0.1");
  Node a, b;
  Certified(a, 1, "", authority.issue("DNS:trainer"));
  Certified(b, 2, "127.0.0.1:0", folder);
  expect_identity(a, b, "before", "trainer");
  authority.issue_into(folder, "DNS:after,IP:127.0.0.1");
  const auto proves = [&](const std::string& identity) {
    a.events.clear();
    b.events.clear();
    return refusal(a, b) == "accepted" && identity_at(a) == identity;
  };
  ASSERT_TRUE(until({&a, &b}, [&] { return proves("after"); }));
}

std::string content_of(const std::string& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(StreamCertificates, AnAuthorityThatIsTakenOutEndsItsConnections) {
  Authority ours, theirs;
  const std::string of_server = ours.issue("IP:127.0.0.1"), of_stranger = theirs.issue("DNS:stranger");
  const std::string ours_only = content_of(of_server + "/ca.crt"), theirs_only = content_of(of_stranger + "/ca.crt");
  std::ofstream(of_server + "/ca.crt") << ours_only << theirs_only;
  std::ofstream(of_stranger + "/ca.crt") << ours_only;
  Node own, stranger, server;
  Certified(own, 1, "", ours.issue("DNS:own"));
  Certified(stranger, 2, "", of_stranger);
  Certified(server, 3, "127.0.0.1:0", of_server);
  const PeerId of_own = *own.transport->connect(server.transport->address(), own.later());
  const PeerId of_other = *stranger.transport->connect(server.transport->address(), stranger.later());
  ASSERT_TRUE(until({&own, &stranger, &server}, [&] { return own.connected() && stranger.connected(); }));

  std::ofstream(of_server + "/ca.crt") << ours_only;
  ASSERT_TRUE(until({&own, &stranger, &server}, [&] { return stranger.gone(of_other) != nullptr; }));
  EXPECT_EQ(own.gone(of_own), nullptr);
  ASSERT_EQ(server.count<Gone>(), 1u);
  EXPECT_THAT(server.all<Gone>().front().second.error.message, HasSubstr("'stranger'"));
  EXPECT_THAT(server.all<Gone>().front().second.error.message, HasSubstr("no longer in this node's ca.crt"));
}

// Returns false if the certificate expired before its owner had connected: that shows nothing.
bool expires_after(int seconds) {
  Authority authority;
  const std::string of_short = authority.issue("DNS:short");
  Node own, other, server;
  Certified(own, 1, "", authority.issue("DNS:own"));
  Certified(server, 3, "127.0.0.1:0", authority.issue("IP:127.0.0.1"));
  authority.let_expire_in(of_short, seconds);
  Certified(other, 2, "", of_short);
  const PeerId of_own = *own.transport->connect(server.transport->address(), own.later());
  const PeerId of_other = *other.transport->connect(server.transport->address(), other.later());
  const bool settled = until({&own, &other, &server},
                             [&] { return own.connected() && (other.connected() || other.gone(of_other) != nullptr); });
  EXPECT_TRUE(settled);
  if (!settled) return true;
  if (!other.connected()) return false;
  EXPECT_TRUE(until({&own, &other, &server}, [&] { return other.gone(of_other) != nullptr; }));
  EXPECT_EQ(own.gone(of_own), nullptr);
  EXPECT_EQ(server.count<Gone>(), 1u);
  if (server.count<Gone>() != 1) return true;
  EXPECT_THAT(server.all<Gone>().front().second.error.message,
              HasSubstr("'short' with a certificate that has expired"));
  EXPECT_THAT(refusal(other, server), HasSubstr("certificate"));
  return true;
}

TEST(StreamCertificates, AConnectionEndsWhenItsCertificateExpires) {
  // On a slow machine again, with more time to connect.
  bool shown = false;
  for (int seconds = 3; !shown; seconds *= 2) {
    ASSERT_LE(seconds, 48);
    shown = expires_after(seconds);
  }
}

// A node's verdict on a folder of certificates: "accepted", or the error.
std::string verdict_on(const std::string& folder) {
  const auto opened = Certificates::open(folder);
  if (!opened) return opened.error().message;
  const auto context = TlsContext::create(*opened);
  return context ? "accepted" : context.error().message;
}

class CertificateFiles : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(file(name), std::ios::trunc) << text;
  }
  std::string file(const std::string& name) const { return folder_ + "/" + name; }
  std::string verdict() const { return verdict_on(folder_); }

  Authority authority_;
  const std::string folder_ = authority_.issue("DNS:node");
};

TEST_F(CertificateFiles, AreAcceptedAsTheyWereIssued) { EXPECT_EQ(verdict(), "accepted"); }

TEST_F(CertificateFiles, AKeyThatOthersMayUseIsRefused) {
  std::filesystem::permissions(file("tls.key"), std::filesystem::perms(0644));
  EXPECT_THAT(verdict(), HasSubstr("tls.key: has mode 0644"));
}

TEST_F(CertificateFiles, TheKeyOfAnotherCertificateIsToldFromOneThatCannotBeRead) {
  std::filesystem::copy_file(authority_.issue("DNS:other") + "/tls.crt", file("tls.crt"),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(verdict(), fmt::format("{}: is not the key of {} (option certificates)", file("tls.key"), file("tls.crt")));
  // A key of another type.
  const std::string rsa = fmt::format("openssl genrsa -out {} 2048 2>/dev/null", file("tls.key"));
  ASSERT_EQ(std::system(rsa.c_str()), 0);
  EXPECT_EQ(verdict(), fmt::format("{}: is not the key of {} (option certificates)", file("tls.key"), file("tls.crt")));
}

TEST_F(CertificateFiles, AKeyThatCannotBeReadIsToldInWords) {
  write("tls.key", "");
  EXPECT_THAT(verdict(), HasSubstr("tls.key: holds no private key in PEM form"));
  write("tls.key", "-----BEGIN PRIVATE KEY-----\nnonsense\n-----END PRIVATE KEY-----\n");
  EXPECT_THAT(verdict(), HasSubstr("tls.key: holds no private key in PEM form"));
  write("tls.key", std::string(100'000, 'x'));
  EXPECT_THAT(verdict(), HasSubstr("tls.key: has more than 65536 bytes"));
  std::filesystem::remove(file("tls.key"));
  EXPECT_EQ(verdict(), file("tls.key") + ": No such file or directory (option certificates)");
}

// OpenSSL would ask for the password at the terminal.
TEST_F(CertificateFiles, AKeyBehindAPasswordIsRefused) {
  const std::string lock =
      fmt::format("openssl pkey -in {0} -aes256 -passout pass:secret -out {0}.locked 2>/dev/null", file("tls.key"));
  ASSERT_EQ(std::system(lock.c_str()), 0);
  std::filesystem::rename(file("tls.key.locked"), file("tls.key"));
  EXPECT_THAT(verdict(), HasSubstr("tls.key: is encrypted with a password, which vmem cannot ask for"));
}

TEST_F(CertificateFiles, CertificatesThatCannotBeReadAreToldInWords) {
  for (const std::string name : {"ca.crt", "tls.crt"}) {
    SCOPED_TRACE(name);
    std::filesystem::rename(file(name), file("kept"));
    EXPECT_EQ(verdict(), file(name) + ": No such file or directory (option certificates)");
    for (const std::string text : {"", "garbage\n", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"}) {
      write(name, text);
      EXPECT_THAT(verdict(), ::testing::StartsWith(file(name) + ": holds no certificate in PEM form")) << text;
    }
    std::filesystem::rename(file("kept"), file(name));
    EXPECT_EQ(verdict(), "accepted");
  }
}

}  // namespace
}  // namespace vmem::rdma
