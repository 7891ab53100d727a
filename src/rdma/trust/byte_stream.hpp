// A connected non-blocking socket: plain (Unix sockets) or under TLS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/closed_on_fork.hpp"
#include "base/file_descriptor.hpp"
#include "rdma/trust/tls.hpp"

namespace vmem::rdma {

class ByteStream {
 public:
  ByteStream() = default;
  explicit ByteStream(FileDescriptor socket) noexcept : socket_(std::move(socket)) {}
  static Result<ByteStream> over_tls(FileDescriptor socket, std::shared_ptr<TlsContext> context, TlsRole role,
                                     const std::string& host);
  ByteStream(ByteStream&&) = default;
  ByteStream& operator=(ByteStream&&) = default;
  ~ByteStream() { shut(); }

  int descriptor() const noexcept { return socket_.get(); }
  bool is_encrypted() const noexcept { return tls_ != nullptr; }
  // The proved peer; empty for a plain stream.
  TlsPeer peer() const { return tls_ ? tls_->peer() : TlsPeer{}; }
  // As in TlsSession; a plain stream needs no handshake. 0 bytes: the socket would block.
  Result<bool> handshake();
  Result<std::size_t> read(Bytes into);
  // Writes at most so many bytes of the pieces, which are not empty.
  Result<std::size_t> write(std::span<const ConstBytes> pieces, std::size_t most = SIZE_MAX);
  Result<bool> flush();
  void shut() noexcept;

 private:
  OwnDescriptor socket_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace vmem::rdma
