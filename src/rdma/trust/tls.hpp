// TLS 1.3 between two nodes that share a secret: an external pre-shared key with an ephemeral
// Diffie-Hellman exchange (psk_dhe_ke). No certificates, tickets, session cache, early data or
// renegotiation. A handshake succeeds only if both ends used the key.
#pragma once

#include <openssl/types.h>

#include <cstdint>
#include <memory>

#include "base/status.hpp"
#include "rdma/crypto.hpp"
#include "rdma/trust/openssl.hpp"

namespace vmem::rdma {

enum class TlsRole : std::uint8_t { client, server };

class TlsContext {
 public:
  // A GCM key protects at most 2^24.5 full records; OpenSSL never changes keys by itself.
  static constexpr std::uint64_t kRecordsPerKey = std::uint64_t{1} << 24;

  // `records_per_key`: a sender changes its key after so many records; tests set it low.
  static Result<std::shared_ptr<TlsContext>> create(const Crypto& crypto, const Secret& secret,
                                                    std::uint64_t records_per_key = kRecordsPerKey);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  SSL_CTX* get() const noexcept { return context_.get(); }
  const Key& key() const noexcept { return key_; }
  std::uint64_t records_per_key() const noexcept { return records_per_key_; }

 private:
  TlsContext() = default;
  Status open();

  Key key_;
  std::uint64_t records_per_key_ = kRecordsPerKey;
  struct Free {
    void operator()(SSL_CTX* context) const noexcept;
  };
  std::unique_ptr<SSL_CTX, Free> context_;
};

// One TLS connection over a socket that does not block. One thread at a time.
class TlsSession {
 public:
  // `socket` outlives the session. The context is kept alive.
  static Result<std::unique_ptr<TlsSession>> create(std::shared_ptr<TlsContext> context, TlsRole role, int socket);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // True once both ends have proved that they know the key. Errors: INVALID_OPTION if the peer has
  // another secret or no TLS; LOST if the connection ended.
  Result<bool> handshake();
  // Bytes decrypted into `into`; 0 if the socket has none now. Errors: LOST.
  Result<std::size_t> read(Bytes into);
  // Bytes of `from` taken; 0 if the socket takes none now. Call flush() afterwards. Errors: LOST.
  Result<std::size_t> write(ConstBytes from);
  // True if everything that write() took has been given to the socket. Errors: LOST.
  Result<bool> flush();

  std::uint64_t key_updates() const noexcept { return key_updates_; }

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
  explicit TlsSession(std::shared_ptr<TlsContext> context) : context_(std::move(context)) {}
  std::unexpected<Error> failure(const char* what);
  Status change_key_if_due();

  std::shared_ptr<TlsContext> context_;
  Wire wire_;
  struct Free {
    void operator()(SSL* ssl) const noexcept;
  };
  std::unique_ptr<SSL, Free> ssl_;
  std::uint64_t records_ = 0;  // sent under the present key
  std::uint64_t key_updates_ = 0;
};

}  // namespace vmem::rdma
