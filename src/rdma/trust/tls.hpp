// TLS 1.3 between two nodes with proofs of both: by an external pre-shared key with an ephemeral
// Diffie-Hellman exchange (psk_dhe_ke), or by certificates on both sides. No tickets, session
// cache, early data or renegotiation.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "rdma/trust/certificates.hpp"
#include "rdma/trust/crypto.hpp"
#include "rdma/trust/keyring.hpp"
#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {

enum class TlsRole : std::uint8_t { client, server };

// The proved identity of a peer.
struct TlsPeer {
  std::string identity;      // the tenant, or the first name in the peer's certificate
  std::string secret;        // name of the secret; "" with certificates
  std::uint64_t serial = 0;  // of the secret, or of the certificate files used to verify
  std::shared_ptr<PeerCertificates> certificates;
  // True for the same identity with the same secret or certificate.
  bool same_as(const TlsPeer& other) const;
};

class TlsContext {
 public:
  // A GCM key protects at most 2^24.5 full records; OpenSSL never changes keys by itself.
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 24;

  // `records_per_key`: records after which a sender changes its key; tests set it low.
  // Errors: INVALID_OPTION for unusable certificates; INTERNAL.
  static Result<std::shared_ptr<TlsContext>> create(CryptoRef crypto, KeyringRef keyring,
                                                    std::uint64_t records_per_key = kRecordsPerKey);
  static Result<std::shared_ptr<TlsContext>> create(CertificatesRef certificates,
                                                    std::uint64_t records_per_key = kRecordsPerKey);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // For new sessions. Thread, also of refresh(): one at a time.
  SSL_CTX* get() const noexcept { return context_.get(); }
  bool uses_certificates() const noexcept { return certificates_ != nullptr; }
  std::uint64_t records_per_key() const noexcept { return records_per_key_; }
  // Reads the secret or certificate files again if they have changed.
  void refresh();
  // False once the peer's secret was removed from the file, its certificate has expired, or its
  // authority was removed from ca.crt. Thread: as refresh().
  bool still_trusts(TlsPeer& peer) const;
  // The reason if still_trusts() returned false: "proved …".
  std::string distrust_of(const TlsPeer& peer) const;
  // Counts the changes of the certificates.
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
  KeyringRef keyring_;  // null with certificates
  CertificatesRef certificates_;
  std::string version_;  // of the certificates; "" without
  std::uint64_t certificates_serial_ = 0;
  std::string refused_;  // the last error of refresh(), to log it once
  Handle context_;
};

// One TLS connection over a non-blocking socket. Thread: one at a time.
class TlsSession {
 public:
  // `socket` outlives the session, which keeps `context` alive. `host`: name or address that the
  // server's certificate must have; unused for the server role.
  static Result<std::unique_ptr<TlsSession>> create(std::shared_ptr<TlsContext> context, TlsRole role, int socket,
                                                    const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // True once both ends are proved. Errors: INVALID_OPTION if the peer has another secret, a
  // refused certificate or no TLS; LOST if the connection ended.
  Result<bool> handshake();
  // Number of bytes decrypted into `into`; 0 if the socket would block. Errors: LOST.
  Result<std::size_t> read(Bytes into);
  // Number of bytes taken from `from`; 0 if the output buffer is full. Call flush() afterwards.
  // Errors: LOST.
  Result<std::size_t> write(ConstBytes from);
  // True once the socket has all output of write(). Errors: LOST.
  Result<bool> flush();

  // REQUIRES: handshake() returned true.
  const TlsPeer& peer() const noexcept { return peer_; }
  std::uint64_t key_updates() const noexcept { return key_updates_; }
  // Makes the sessions of `context` use pre-shared keys of their keyring.
  static void use_secrets(SSL_CTX* context);

 private:
  // State of OpenSSL's BIO callbacks. One system call moves many records, in both directions.
  struct Wire {
    int socket = -1;
    std::vector<std::byte> in;
    std::size_t taken = 0, there = 0;  // read position and end of the data in `in`
    std::vector<std::byte> out;
    std::size_t sent = 0;  // bytes of `out` sent
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
  std::string offered_;  // the key's identity, which OpenSSL reads in place
  struct Free {
    void operator()(SSL* ssl) const noexcept;
  };
  std::unique_ptr<SSL, Free> ssl_;
  std::uint64_t records_ = 0;  // sent under the current key
  std::uint64_t key_updates_ = 0;
};

}  // namespace vmem::rdma
