// TLS 1.3 between two nodes, each of which proves who it is: by an external pre-shared key with an
// ephemeral Diffie-Hellman exchange (psk_dhe_ke), or by certificates on both sides. No tickets, session
// cache, early data or renegotiation.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "rdma/crypto.hpp"
#include "rdma/trust/certificates.hpp"
#include "rdma/trust/keyring.hpp"
#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {

enum class TlsRole : std::uint8_t { client, server };

// Who proved itself.
struct TlsPeer {
  std::string identity;      // the tenant, or the first name in the peer's certificate
  std::string secret;        // its name; "" with certificates
  std::uint64_t serial = 0;  // of the secret, or of the files by which the certificates were verified
  std::shared_ptr<PeerCertificates> certificates;
  // The same secret, or the same certificate.
  bool same_as(const TlsPeer& other) const;
};

class TlsContext {
 public:
  // A GCM key protects at most 2^24.5 full records; OpenSSL never changes keys by itself.
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 24;

  // `records_per_key`: a sender changes its key after so many records; tests set it low.
  // Errors: INVALID_OPTION for certificates that cannot be used; INTERNAL.
  static Result<std::shared_ptr<TlsContext>> create(CryptoRef crypto, KeyringRef keyring,
                                                    std::uint64_t records_per_key = kRecordsPerKey);
  static Result<std::shared_ptr<TlsContext>> create(CertificatesRef certificates,
                                                    std::uint64_t records_per_key = kRecordsPerKey);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // For sessions from now on. Thread, also of refresh(): one at a time.
  SSL_CTX* get() const noexcept { return context_.get(); }
  bool uses_certificates() const noexcept { return certificates_ != nullptr; }
  std::uint64_t records_per_key() const noexcept { return records_per_key_; }
  // Reads the files again if they have changed.
  void refresh();
  // False for one whose secret has been taken out of the file; whose certificate has expired; or
  // whose authority has been taken out of ca.crt. Thread: as refresh().
  bool still_trusts(TlsPeer& peer) const;
  // Why not: "proved …".
  std::string distrust_of(const TlsPeer& peer) const;
  // Differs after each change of the certificates.
  std::uint64_t certificates_serial() const noexcept { return certificates_serial_; }
  // REQUIRES: no certificates.
  const Keyring& keyring() const noexcept { return *keyring_; }
  Key tls_key(const Secret& secret) const { return crypto_->derive(secret.key(), "vmem tls 1.3 pre-shared key"); }

 private:
  struct Free {
    void operator()(SSL_CTX* context) const noexcept;
  };
  using Handle = std::unique_ptr<SSL_CTX, Free>;
  explicit TlsContext(std::uint64_t records_per_key) : records_per_key_(records_per_key) {}
  Result<Handle> make() const;

  const std::uint64_t records_per_key_;
  CryptoRef crypto_;
  KeyringRef keyring_;  // or
  CertificatesRef certificates_;
  std::string version_;  // of the certificates; "" without
  std::uint64_t certificates_serial_ = 0;
  std::string refused_;  // the last error of refresh()
  Handle context_;
};

// One TLS connection over a socket that does not block. One thread at a time.
class TlsSession {
 public:
  // `socket` outlives the session. The context is kept alive. `host`: what a server's certificate has to
  // be for. A server has none.
  static Result<std::unique_ptr<TlsSession>> create(std::shared_ptr<TlsContext> context, TlsRole role, int socket,
                                                    const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // True once both ends have proved who they are. Errors: INVALID_OPTION if the peer has another secret,
  // a certificate that is not accepted, or no TLS; LOST if the connection ended.
  Result<bool> handshake();
  // Bytes decrypted into `into`; 0 if the socket has none now. Errors: LOST.
  Result<std::size_t> read(Bytes into);
  // Bytes of `from` taken; 0 if the socket takes none now. Call flush() afterwards. Errors: LOST.
  Result<std::size_t> write(ConstBytes from);
  // True if everything that write() took has been given to the socket. Errors: LOST.
  Result<bool> flush();

  // REQUIRES: handshake() returned true.
  const TlsPeer& peer() const noexcept { return peer_; }
  std::uint64_t key_updates() const noexcept { return key_updates_; }
  // Sessions of `context` use its keyring.
  static void use_secrets(SSL_CTX* context);

 private:
  // What OpenSSL's BIO callbacks work on. One system call moves many records, in both directions.
  struct Wire {
    int socket = -1;
    std::vector<std::byte> in;
    std::size_t taken = 0, there = 0;  // of in
    std::vector<std::byte> out;
    std::size_t sent = 0;  // of out
    int error = 0;         // errno of a failed send or recv
    bool ended = false;    // the peer closed its end
  };
  struct Bio;
  struct Callbacks;
  explicit TlsSession(std::shared_ptr<TlsContext> context) : context_(std::move(context)) {}
  std::unexpected<Error> failure(const char* what);
  std::unexpected<Error> refused() const;
  Result<bool> identify();
  Status change_key_if_due();

  std::shared_ptr<TlsContext> context_;
  Wire wire_;
  TlsPeer peer_;
  std::string offered_;  // what OpenSSL reads as the identity of the key
  struct Free {
    void operator()(SSL* ssl) const noexcept;
  };
  std::unique_ptr<SSL, Free> ssl_;
  std::uint64_t records_ = 0;  // sent under the present key
  std::uint64_t key_updates_ = 0;
};

}  // namespace vmem::rdma
