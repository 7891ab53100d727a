#include "rdma/trust/tls.hpp"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/log.hpp"

namespace vmem::rdma {
namespace {

// Prefix of a secret's name on the wire.
constexpr std::string_view kPrefix = "vmem 1 ";
constexpr const char* kCiphers = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr unsigned char kAes128GcmSha256[] = {0x13, 0x01};
constexpr std::size_t kRecordBytes = 16384;

// In a forked child the keys of the connection are zeros.
Status check_not_forked() {
  if (!openssl_is_wiped()) return {};
  return fail(VMEM_ERROR_LOST, "the connection belongs to the process that this one was forked from");
}

// One send or recv moves several records: the system call is a quarter of the cost of a record.
constexpr std::size_t kOutBytes = 256 << 10;
constexpr std::size_t kInBytes = 256 << 10;

// Null on lack of memory.
SSL_SESSION* make_session(SSL* ssl, const Key& key) {
  SSL_SESSION* const session = SSL_SESSION_new();
  const auto* const name = reinterpret_cast<const unsigned char*>(kPrefix.data());
  if (session != nullptr && SSL_SESSION_set1_master_key(session, key.bytes.data(), key.bytes.size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, kAes128GcmSha256)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1 &&
      SSL_SESSION_set1_id_context(session, name, kPrefix.size()) == 1)
    return session;
  SSL_SESSION_free(session);
  return nullptr;
}

}  // namespace

// ---- context ----

void TlsContext::Free::operator()(SSL_CTX* context) const noexcept { free_openssl<SSL_CTX_free>(context); }

TlsContext::~TlsContext() = default;

Result<std::shared_ptr<TlsContext>> TlsContext::create(CryptoRef crypto, KeyringRef keyring,
                                                       std::uint64_t records_per_key) {
  std::shared_ptr<TlsContext> context(new TlsContext(records_per_key));
  context->crypto_ = std::move(crypto);
  context->keyring_ = std::move(keyring);
  VMEM_ASSIGN(context->context_, context->make());
  return context;
}

Result<std::shared_ptr<TlsContext>> TlsContext::create(CertificatesRef certificates, std::uint64_t records_per_key) {
  std::shared_ptr<TlsContext> context(new TlsContext(records_per_key));
  context->certificates_ = std::move(certificates);
  context->version_ = context->certificates_->version();
  VMEM_ASSIGN(context->context_, context->make());
  return context;
}

Result<TlsContext::Handle> TlsContext::make() const {
  VMEM_ASSIGN(OSSL_LIB_CTX* const library, openssl());
  Handle handle(SSL_CTX_new_ex(library, nullptr, TLS_method()));
  SSL_CTX* const context = handle.get();
  if (context == nullptr) return openssl_failure("SSL_CTX_new");
  if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 || SSL_CTX_set_ciphersuites(context, kCiphers) != 1 ||
      SSL_CTX_set_num_tickets(context, 0) != 1)
    return openssl_failure("TLS 1.3 could not be set up");
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // OpenSSL's own read-ahead moves the rest of its buffer for every record.
  SSL_CTX_set_read_ahead(context, 0);
  // With secrets no authority is trusted: a peer that presents a certificate is refused.
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  const auto* const name = reinterpret_cast<const unsigned char*>(kPrefix.data());
  if (SSL_CTX_set_session_id_context(context, name, kPrefix.size()) != 1) return openssl_failure("TLS session context");
  if (certificates_) {
    VMEM_TRY(certificates_->install(context));
  } else {
    TlsSession::use_secrets(context);
  }
  return handle;
}

void TlsContext::refresh() {
  if (keyring_) {
    keyring_->refresh();
    return;
  }
  std::string version = certificates_->version();
  if (version == version_) return;
  auto fresh = make();
  if (!fresh) {  // several files are replaced one after the other
    if (std::exchange(refused_, fresh.error().message) != fresh.error().message)
      VMEM_LOG_WARN("{}; the certificates that were read before stay in use", refused_);
    return;
  }
  refused_.clear();
  version_ = std::move(version);
  context_ = *std::move(fresh);
  ++certificates_serial_;
  VMEM_LOG_INFO("the certificates have changed: connections from now on use the new ones");
}

bool TlsPeer::same_as(const TlsPeer& other) const {
  if (identity != other.identity || secret != other.secret) return false;
  return certificates == nullptr || (other.certificates != nullptr && certificates->same_as(*other.certificates));
}

bool TlsContext::still_trusts(TlsPeer& peer) const {
  if (keyring_) return keyring_->holds(peer.serial);
  // Verifies signatures again only after a change of the files: the caller runs this every second
  // for each connection.
  if (peer.serial != certificates_serial_ && !peer.certificates->are_trusted_by(context_.get())) return false;
  peer.serial = certificates_serial_;
  return peer.certificates->are_in_time();
}

std::string TlsContext::distrust_of(const TlsPeer& peer) const {
  if (keyring_)
    return fmt::format("proved to know the secret '{}', which is no longer in this node's secret file", peer.secret);
  return fmt::format(
      "proved to be '{}' with a certificate that has expired, or whose authority is no longer in this node's ca.crt",
      peer.identity);
}

// ---- secrets ----

struct TlsSession::Callbacks {
  static TlsSession& of(SSL* ssl) { return *static_cast<TlsSession*>(SSL_get_app_data(ssl)); }

  static SSL_SESSION* use(SSL* ssl, const Secret& secret) {
    TlsSession& session = of(ssl);
    session.peer_ = {std::string(secret.tenant()), secret.name, secret.serial};
    return make_session(ssl, session.context_->tls_key(secret));
  }

  static int offer(SSL* ssl, const EVP_MD*, const unsigned char** identity, std::size_t* bytes, SSL_SESSION** made) {
    TlsSession& session = of(ssl);
    const Secret& own = session.context_->keyring().own();
    session.offered_ = std::string(kPrefix) + own.name;
    *identity = reinterpret_cast<const unsigned char*>(session.offered_.data());
    *bytes = session.offered_.size();
    *made = use(ssl, own);
    return *made != nullptr ? 1 : 0;
  }

  static int find(SSL* ssl, const unsigned char* identity, std::size_t bytes, SSL_SESSION** made) {
    *made = nullptr;
    std::string_view name(reinterpret_cast<const char*>(identity), bytes);
    if (!name.starts_with(kPrefix)) return 1;  // without a session OpenSSL fails the handshake
    name.remove_prefix(kPrefix.size());
    if (const Secret* const secret = of(ssl).context_->keyring().find(name)) *made = use(ssl, *secret);
    return 1;
  }
};

void TlsSession::use_secrets(SSL_CTX* context) {
  SSL_CTX_set_psk_use_session_callback(context, &Callbacks::offer);
  SSL_CTX_set_psk_find_session_callback(context, &Callbacks::find);
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

void TlsSession::Free::operator()(SSL* ssl) const noexcept { free_openssl<SSL_free>(ssl); }

TlsSession::~TlsSession() = default;

Result<std::unique_ptr<TlsSession>> TlsSession::create(std::shared_ptr<TlsContext> context, TlsRole role, int socket,
                                                       const std::string& host) {
  std::unique_ptr<TlsSession> session(new TlsSession(std::move(context)));
  session->wire_.socket = socket;
  session->wire_.in.resize(kInBytes);
  session->wire_.out.reserve(kOutBytes + 2 * kRecordBytes);
  session->peer_.serial = session->context_->certificates_serial();
  session->ssl_.reset(SSL_new(session->context_->get()));
  BIO* const bio = Bio::method() != nullptr ? BIO_new(Bio::method()) : nullptr;
  if (session->ssl_ == nullptr || bio == nullptr) {
    BIO_free(bio);
    return openssl_failure("a TLS connection could not be made");
  }
  BIO_set_data(bio, &session->wire_);
  SSL_set_bio(session->ssl_.get(), bio, bio);
  SSL_set_app_data(session->ssl_.get(), session.get());
  if (role == TlsRole::client) {
    if (session->context_->uses_certificates()) VMEM_TRY(expect_certified_host(session->ssl_.get(), host));
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
  VMEM_TRY(check_not_forked());
  ERR_clear_error();
  const int done = SSL_do_handshake(ssl_.get());
  const int why = done == 1 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), done);
  if (auto sent = flush(); !sent) return std::unexpected(std::move(sent).error());
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return false;
  if (why != SSL_ERROR_NONE) {
    if (wire_.error != 0 || (wire_.ended && ERR_peek_error() == 0)) return failure("TLS handshake");
    return refused();
  }
  return identify();
}

std::unexpected<Error> TlsSession::refused() const {
  if (!context_->uses_certificates() && SSL_is_server(ssl_.get()) == 1)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the peer proved to know none of this node's secrets, or speaks no TLS 1.3: give both the "
                            "same secret file ({})",
                            openssl_words()));
  if (!context_->uses_certificates())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the peer does not know the secret '{}' as this node does, or speaks no TLS 1.3: give "
                            "both the same secret file ({})",
                            context_->keyring().own().name, openssl_words()));
  const long verified = SSL_get_verify_result(ssl_.get());
  const std::string why = verified == X509_V_OK ? "" : fmt::format("{}; ", X509_verify_cert_error_string(verified));
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("the peer's certificate, or this node's, was refused: {}{}; both have to be signed by the "
                          "other's ca.crt, and a server's has to name the host that was asked for",
                          why, openssl_words()));
}

Result<bool> TlsSession::identify() {
  if (!context_->uses_certificates()) {
    if (SSL_session_reused(ssl_.get()) != 1)
      return fail(VMEM_ERROR_INVALID_OPTION, "the peer did not prove to know the secret");
    return true;
  }
  peer_.certificates = std::make_shared<PeerCertificates>(ssl_.get());
  peer_.identity = certified_name(ssl_.get());
  if (peer_.identity.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                "the peer's certificate names nobody: it needs a DNS name, URI or address as its subject "
                "alternative name");
  return true;
}

Result<std::size_t> TlsSession::read(Bytes into) {
  VMEM_TRY(check_not_forked());
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
  VMEM_TRY(check_not_forked());
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
  VMEM_TRY(check_not_forked());
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
