#include "rdma/trust/tls.hpp"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

namespace vmem::rdma {
namespace {

constexpr std::string_view kIdentity = "vmem cluster 1";
const auto* const kIdentityBytes = reinterpret_cast<const unsigned char*>(kIdentity.data());
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
constexpr std::size_t kRecordBytes = 16384;

// One send or recv moves several records: the system call is a quarter of the cost of a record.
constexpr std::size_t kOutBytes = 256 << 10;
constexpr std::size_t kInBytes = 256 << 10;

SSL_SESSION* make_session(SSL* ssl, const Key& key) {
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session != nullptr && SSL_SESSION_set1_master_key(session, key.bytes.data(), key.bytes.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kAes128GcmSha256)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, kIdentityBytes, kIdentity.size()) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

const TlsContext& context_of(SSL* ssl) { return *static_cast<TlsContext*>(SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl))); }

int offer_key(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* identity_bytes,
              SSL_SESSION** session) {
  *identity = kIdentityBytes;
  *identity_bytes = kIdentity.size();
  *session = make_session(ssl, context_of(ssl).key());
  return *session != nullptr ? 1 : 0;
}

int find_key(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (std::string_view(reinterpret_cast<const char*>(identity), identity_bytes) == kIdentity)
    *session = make_session(ssl, context_of(ssl).key());
  return 1;  // without a session the handshake fails by itself
}

}  // namespace

// ---- context ----

void TlsContext::Free::operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }

TlsContext::~TlsContext() = default;

Result<std::shared_ptr<TlsContext>> TlsContext::create(const Crypto& crypto, const Secret& secret,
                                                       std::uint64_t records_per_key) {
  std::shared_ptr<TlsContext> context(new TlsContext);
  context->key_ = crypto.derive(secret.key(), "vmem tls 1.3 pre-shared key", {});
  context->records_per_key_ = records_per_key;
  VMEM_TRY(context->open());
  return context;
}

Status TlsContext::open() {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  context_.reset(SSL_CTX_new_ex(library, nullptr, TLS_method()));
  SSL_CTX* const context = context_.get();
  if (context == nullptr) return openssl_failure("SSL_CTX_new");
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(context, kCiphers) != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1)
    return openssl_failure("TLS 1.3 could not be set up");
  SSL_CTX_set_app_data(context, this);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // OpenSSL's own read-ahead moves what is left in its buffer for every record.
  SSL_CTX_set_read_ahead(context, 0);
  // A peer that answers with a certificate instead of the key is refused: no authority is trusted.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (SSL_CTX_set_session_id_context(context, kIdentityBytes, kIdentity.size()) != 1)
    return openssl_failure("TLS session context");
  SSL_CTX_set_psk_use_session_callback(context, offer_key);
  SSL_CTX_set_psk_find_session_callback(context, find_key);
  return {};
}

// ---- session ----

struct TlsSession::Bio {
  static Wire& wire(BIO* bio) { return *static_cast<Wire*>(BIO_get_data(bio)); }

  static int read(BIO* bio, char* into, std::size_t bytes, std::size_t* got) {
    BIO_clear_retry_flags(bio);
    Wire& wire = Bio::wire(bio);
    if (wire.taken == wire.there && !fill(bio, wire)) return 0;
    *got = std::min(bytes, wire.there - wire.taken);
    std::memcpy(into, wire.in.data() + wire.taken, *got);
    wire.taken += *got;
    return 1;
  }

  static bool fill(BIO* bio, Wire& wire) {
    ssize_t received = -1;
    do received = ::recv(wire.socket, wire.in.data(), wire.in.size(), 0);
    while (received < 0 && errno == EINTR);
    wire.taken = 0;
    wire.there = received > 0 ? static_cast<std::size_t>(received) : 0;
    if (received == 0) wire.ended = true;
    if (received < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
    if (received < 0 && errno != EAGAIN) wire.error = errno;
    return received > 0;
  }

  static int write(BIO* bio, const char* from, std::size_t bytes, std::size_t* taken) {
    BIO_clear_retry_flags(bio);
    Wire& wire = Bio::wire(bio);
    if (wire.out.size() >= kOutBytes) {
      BIO_set_retry_write(bio);
      return 0;
    }
    const auto* const begin = reinterpret_cast<const std::byte*>(from);
    wire.out.insert(wire.out.end(), begin, begin + bytes);
    *taken = bytes;
    return 1;
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static int create(BIO* bio) {
    BIO_set_init(bio, 1);
    return 1;
  }

  static const BIO_METHOD* method() {
    static BIO_METHOD* const made = [] {
      BIO_METHOD* const fresh = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "vmem socket");
      if (fresh != nullptr) {
        BIO_meth_set_read_ex(fresh, &Bio::read);
        BIO_meth_set_write_ex(fresh, &Bio::write);
        BIO_meth_set_ctrl(fresh, &Bio::control);
        BIO_meth_set_create(fresh, &Bio::create);
      }
      return fresh;
    }();
    return made;
  }
};

void TlsSession::Free::operator()(SSL* ssl) const noexcept { SSL_free(ssl); }

TlsSession::~TlsSession() = default;

Result<std::unique_ptr<TlsSession>> TlsSession::create(std::shared_ptr<TlsContext> context, TlsRole role, int socket) {
  std::unique_ptr<TlsSession> session(new TlsSession(std::move(context)));
  session->wire_.socket = socket;
  session->wire_.in.resize(kInBytes);
  session->wire_.out.reserve(kOutBytes + 2 * kRecordBytes);
  session->ssl_.reset(SSL_new(session->context_->get()));
  BIO* const bio = Bio::method() != nullptr ? BIO_new(Bio::method()) : nullptr;
  if (session->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return openssl_failure("a TLS connection could not be made");
  }
  BIO_set_data(bio, &session->wire_);
  SSL_set_bio(session->ssl_.get(), bio, bio);
  if (role == TlsRole::client) {
    SSL_set_connect_state(session->ssl_.get());
  } else {
    SSL_set_accept_state(session->ssl_.get());
  }
  return session;
}

std::unexpected<Error> TlsSession::failure(const char* what) {
  if (wire_.error != 0)
    return fail(VMEM_ERROR_LOST, fmt::format("the connection broke: {}", std::strerror(wire_.error)), wire_.error);
  if (wire_.ended) return fail(VMEM_ERROR_LOST, "the peer ended the connection");
  return fail(VMEM_ERROR_LOST, fmt::format("{}: {}", what, openssl_words()));
}

Result<bool> TlsSession::handshake() {
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  const int why = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), done);
  if (auto sent = flush(); !sent) return std::unexpected(std::move(sent).error());
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return false;
  if (why != SSL_ERROR_NONE) {
    if (wire_.error != 0 || (wire_.ended && ERR_peek_error() == 0)) return failure("TLS handshake");
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the peer does not know this node's secret, or speaks no TLS 1.3: give both the same "
                            "secret file ({})",
                            openssl_words()));
  }
  if (SSL_session_reused(ssl_.get()) != 1)
    return fail(VMEM_ERROR_INVALID_OPTION, "the peer did not prove to know the secret");
  return true;
}

Result<std::size_t> TlsSession::read(Bytes into) {
  ERR_clear_error();
  std::size_t got = 0;
  if (SSL_read_ex(ssl_.get(), into.data(), into.size(), &got) == 1) return got;
  const int why = SSL_get_error(ssl_.get(), 0);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return 0;
  return failure("a TLS record was refused");
}

Status TlsSession::change_key_if_due() {
  if (records_ < context_->records_per_key()) return {};
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return failure("the TLS key was not changed");
  records_ = 0;
  ++key_updates_;
  return {};
}

Result<std::size_t> TlsSession::write(ConstBytes from) {
  VMEM_TRY(change_key_if_due());
  ERR_clear_error();
  const std::uint64_t until_change = (context_->records_per_key() - records_) * kRecordBytes;
  std::size_t taken = 0;
  const std::size_t most = std::min<std::uint64_t>(from.size(), until_change);
  if (SSL_write_ex(ssl_.get(), from.data(), most, &taken) == 1) {
    records_ += (taken + kRecordBytes - 1) / kRecordBytes;
    return taken;
  }
  const int why = SSL_get_error(ssl_.get(), 0);
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return 0;
  return failure("TLS took no data");
}

Result<bool> TlsSession::flush() {
  while (wire_.sent < wire_.out.size()) {
    const ssize_t sent =
        ::send(wire_.socket, wire_.out.data() + wire_.sent, wire_.out.size() - wire_.sent, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && errno == EAGAIN) return false;
    if (sent < 0) {
      wire_.error = errno;
      return failure("send");
    }
    wire_.sent += static_cast<std::size_t>(sent);
  }
  wire_.out.clear();
  wire_.sent = 0;
  return true;
}

}  // namespace vmem::rdma
