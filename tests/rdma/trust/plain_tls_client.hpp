// An OpenSSL client that knows the secret and offers what a node would not.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string>

#include "base/file_descriptor.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/trust/openssl.hpp"
#include "rdma/trust/tls.hpp"

namespace vmem::rdma {

class PlainTlsClient {
 public:
  struct Offer {
    std::string identity;  // as on the wire
    Key key;
    std::uint32_t early_data = 0;                      // bytes that its session allows
    std::function<void(SSL_CTX*)> settings = nullptr;  // beyond OpenSSL's defaults
  };
  PlainTlsClient(const std::string& address, Offer offer) : offer_(std::move(offer)) {
    const auto to = *SocketAddress::parse(address);
    socket_ = FileDescriptor(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(socket_.get(), to.get(), to.size()), 0);
    (void)::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
    context_.reset(SSL_CTX_new_ex(*openssl(), nullptr, TLS_client_method()));
    SSL_CTX_set_psk_use_session_callback(context_.get(), &PlainTlsClient::offer_session);
    SSL_CTX_set_psk_client_callback(context_.get(), &PlainTlsClient::offer_key);  // TLS 1.2
    // Tickets come to the callback.
    SSL_CTX_set_session_cache_mode(context_.get(), SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context_.get(), &PlainTlsClient::count_ticket);
    if (offer_.settings) offer_.settings(context_.get());
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_app_data(ssl_.get(), this);
    SSL_set_fd(ssl_.get(), socket_.get());
    SSL_set_connect_state(ssl_.get());
  }

  SSL* ssl() const noexcept { return ssl_.get(); }
  int socket() const noexcept { return socket_.get(); }
  std::size_t tickets() const noexcept { return tickets_; }
  // Returns true once the handshake has ended; outcome() is "" for success, or the reason.
  bool handshake() {
    ERR_clear_error();
    return ended(SSL_do_handshake(ssl_.get()));
  }
  // Reads and drops data; returns true once the server has closed the connection.
  bool drain() {
    char any[256];
    std::size_t got = 0;
    ERR_clear_error();
    while (SSL_read_ex(ssl_.get(), any, sizeof(any), &got) == 1) {
    }
    const int why = SSL_get_error(ssl_.get(), 0);
    return why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE;
  }
  const std::string& outcome() const noexcept { return outcome_; }

 private:
  static PlainTlsClient& of(SSL* ssl) { return *static_cast<PlainTlsClient*>(SSL_get_app_data(ssl)); }
  static int offer_session(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* bytes,
                           SSL_SESSION** made) {
    static constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
    const Offer& offer = of(ssl).offer_;
    *identity = reinterpret_cast<const unsigned char*>(offer.identity.data());
    *bytes = offer.identity.size();
    *made = SSL_SESSION_new();
    return SSL_SESSION_set1_master_key(*made, offer.key.bytes.data(), offer.key.bytes.size()) &
           SSL_SESSION_set_cipher(*made, SSL_CIPHER_find(ssl, kAes128GcmSha256)) &
           SSL_SESSION_set_protocol_version(*made, TLS1_3_VERSION) &
           SSL_SESSION_set_max_early_data(*made, offer.early_data);
  }
  static unsigned offer_key(SSL* ssl, const char*, char* identity, unsigned most, unsigned char* key, unsigned) {
    const Offer& offer = of(ssl).offer_;
    offer.identity.copy(identity, most);
    identity[offer.identity.size()] = '\0';
    std::ranges::copy(offer.key.bytes, key);
    return static_cast<unsigned>(offer.key.bytes.size());
  }
  static int count_ticket(SSL* ssl, SSL_SESSION*) {
    ++of(ssl).tickets_;
    return 0;
  }
  bool ended(int done) {
    const int why = SSL_get_error(ssl_.get(), done);
    if (done != 1 && (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)) return false;
    outcome_ = done == 1 ? "" : openssl_words();
    return true;
  }

  const Offer offer_;
  FileDescriptor socket_;
  std::unique_ptr<SSL_CTX, OpenSslDelete<SSL_CTX_free>> context_;
  std::unique_ptr<SSL, OpenSslDelete<SSL_free>> ssl_;
  std::size_t tickets_ = 0;
  std::string outcome_ = "it is not over";
};

}  // namespace vmem::rdma
