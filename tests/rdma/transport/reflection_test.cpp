// A peer that reflects a node's own bytes. Only the role in a Hello tells the two apart.
#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include "rdma/transport/stream_node.hpp"
#include "rdma/trust/byte_stream.hpp"
#include "rdma/trust/local_socket.hpp"

namespace vmem::rdma {
namespace {

using ::testing::HasSubstr;

// Listens where a node connects to, and answers by hand.
class Mirror {
 public:
  explicit Mirror(const KeyringRef& keyring) : crypto_(*Crypto::load()) {
    const auto any = *SocketAddress::parse("127.0.0.1:0");
    if (keyring) {
      tls_ = *TlsContext::create(crypto_, keyring);
      listener_ = FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      EXPECT_EQ(::bind(listener_.get(), any.get(), any.size()) | ::listen(listener_.get(), 8), 0);
    } else {
      local_.reset(new Result<LocalListener>(LocalListener::create(*crypto_, any)));
    }
  }
  std::string address() const {
    return local_ ? (*local_)->address() : SocketAddress::bound_to(listener_.get())->text();
  }
  // Accepts a connection; ignores its first bytes.
  bool accepts() {
    const int listener = local_ ? (*local_)->socket() : listener_.get();
    FileDescriptor socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) return false;
    raw_ = socket.get();
    stream_ =
        tls_ ? *ByteStream::over_tls(std::move(socket), tls_, TlsRole::server, "") : ByteStream(std::move(socket));
    return true;
  }
  // Reads the node's Hello after the handshake, and returns it as one of node `id` with `role`.
  bool answers(std::uint64_t id, Hello::Role role) {
    if (!secured_) {
      const auto done = stream_.handshake();
      EXPECT_TRUE(done);
      secured_ = done && *done;
      if (!secured_) return false;
    }
    const Bytes bytes = std::as_writable_bytes(std::span(&hello_, 1));
    const auto got = stream_.read(bytes.subspan(received_));
    received_ += got ? *got : 0;
    if (received_ < sizeof(hello_)) return false;
    hello_.node = id;
    hello_.role = role;
    hello_.link = 1;
    const ConstBytes pieces[] = {bytes};
    return *stream_.write(pieces) == sizeof(hello_) && *stream_.flush();
  }
  // Sends back received bytes unchanged.
  void reflect() const {
    char bytes[4096];
    const ssize_t got = ::recv(raw_, bytes, sizeof(bytes), MSG_DONTWAIT);
    if (got > 0) (void)::send(raw_, bytes, static_cast<std::size_t>(got), MSG_NOSIGNAL);
  }

 private:
  CryptoRef crypto_;
  std::shared_ptr<TlsContext> tls_;
  FileDescriptor listener_;
  std::unique_ptr<Result<LocalListener>> local_;
  ByteStream stream_;
  Hello hello_;
  std::size_t received_ = 0;
  bool secured_ = false;
  int raw_ = -1;
};

class Reflection : public testing::TestWithParam<bool> {
 protected:
  // The node's reason to refuse this answer; "" if it accepts.
  std::string answer(std::uint64_t id, Hello::Role role) {
    Node node;
    Mirror mirror(keyring_);
    node.start_as(node.config(1, "", keyring_));
    const PeerId peer = *node.transport->connect(mirror.address(), node.later());
    EXPECT_TRUE(until({&node}, [&] { return mirror.accepts(); }));
    EXPECT_TRUE(until({&node}, [&] { return mirror.answers(id, role); }));
    // An accepted peer gets the link's second connection.
    EXPECT_TRUE(until({&node}, [&] { return node.gone(peer) != nullptr || mirror.accepts(); }));
    if (node.gone(peer) == nullptr) return "";
    EXPECT_EQ(node.gone(peer)->reason, Reason::refused);
    EXPECT_FALSE(node.connected());
    return node.gone(peer)->error.message;
  }
  const KeyringRef keyring_ = GetParam() ? SecretFile().read() : nullptr;
};

TEST_P(Reflection, AHelloThatComesBackIsRefusedForItsRole) {
  EXPECT_THAT(answer(1, Hello::Role::initiator), HasSubstr("in a way that cannot be"));
  EXPECT_THAT(answer(77, Hello::Role::initiator), HasSubstr("in a way that cannot be")) << "whatever id it bears";
  EXPECT_THAT(answer(77, static_cast<Hello::Role>(3)), HasSubstr("in a way that cannot be"));
  EXPECT_EQ(answer(77, Hello::Role::responder), "") << "the role was all that was wrong";
}

TEST_P(Reflection, AListenerIsNotAnsweredAsIfItHadAsked) {
  Node node;
  StreamConfig config = node.config(1, "127.0.0.1:0", keyring_);
  config.handshake_us = 3600 * kSecondUs;  // its expiry would end the connection, too
  node.start_as(std::move(config));
  const auto to = *SocketAddress::parse(node.transport->address());
  ByteStream stream;
  std::shared_ptr<TlsContext> tls;
  if (keyring_) {
    tls = *TlsContext::create(*Crypto::load(), keyring_);
    FileDescriptor socket(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::connect(socket.get(), to.get(), to.size()), 0);
    (void)::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    stream = *ByteStream::over_tls(std::move(socket), tls, TlsRole::client, "");
  } else {
    const auto name = *socket_path(to);
    FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ASSERT_EQ(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof(name)), 0);
    stream = ByteStream(std::move(socket));
  }
  ASSERT_TRUE(until({&node}, [&] { return *stream.handshake(); }));
  const Hello hello{.role = Hello::Role::responder,
                    .node = 77,
                    .incarnation = 1,
                    .base = kParameters.base,
                    .space_bytes = kParameters.space_bytes,
                    .page_bytes = kParameters.page_bytes};
  const ConstBytes pieces[] = {std::as_bytes(std::span(&hello, 1))};
  ASSERT_EQ(*stream.write(pieces), sizeof(hello));
  ASSERT_TRUE(*stream.flush());
  std::array<std::byte, 256> answer;
  ASSERT_TRUE(until({&node}, [&] { return !stream.read(answer); })) << "it ends the connection";
  EXPECT_TRUE(node.events.empty());
}

// Below the Hello: TLS bytes are reflected unchanged.
TEST(TlsReflection, AClientHelloThatComesBackEndsTheConnection) {
  const KeyringRef keyring = SecretFile().read();
  Node node;
  Mirror mirror(keyring);
  node.start_as(node.config(1, "", keyring));
  const PeerId peer = *node.transport->connect(mirror.address(), node.later());
  ASSERT_TRUE(until({&node}, [&] { return mirror.accepts(); }));
  ASSERT_TRUE(until({&node}, [&] {
    mirror.reflect();
    return node.gone(peer) != nullptr;
  }));
  EXPECT_EQ(node.gone(peer)->reason, Reason::refused);
}

INSTANTIATE_TEST_SUITE_P(Over, Reflection, testing::Bool(),
                         [](const auto& test) { return test.param ? "Tls" : "UnixSocket"; });

}  // namespace
}  // namespace vmem::rdma
