#include "rdma/trust/byte_stream.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace vmem::rdma {
namespace {

std::unexpected<Error> broken(int code) {
  return fail(VMEM_ERROR_LOST, fmt::format("the connection broke: {}", std::strerror(code)), code);
}

}  // namespace

Result<ByteStream> ByteStream::over_tls(FileDescriptor socket, std::shared_ptr<TlsContext> context, TlsRole role,
                                        const std::string& host) {
  ByteStream stream(std::move(socket));
  VMEM_ASSIGN(stream.tls_, TlsSession::create(std::move(context), role, stream.descriptor(), host));
  return stream;
}

void ByteStream::shut() noexcept {
  if (socket_) (void)::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

Result<bool> ByteStream::handshake() {
  if (tls_) return tls_->handshake();
  return true;
}

Result<std::size_t> ByteStream::read(Bytes into) {
  if (tls_) return tls_->read(into);
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), into.data(), into.size(), 0);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0) return fail(VMEM_ERROR_LOST, "the peer ended the connection");
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return broken(errno);
  }
}

Result<std::size_t> ByteStream::write(std::span<const ConstBytes> pieces, std::size_t most) {
  if (tls_) return tls_->write(pieces.front().first(std::min(most, pieces.front().size())));
  std::array<iovec, kMostSpans + 1> parts;
  std::size_t count = 0;
  for (; count < std::min(pieces.size(), parts.size()) && most != 0; ++count) {
    const std::size_t bytes = std::min(most, pieces[count].size());
    parts[count] = {const_cast<std::byte*>(pieces[count].data()), bytes};
    most -= bytes;
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = count;
  for (;;) {
    const ssize_t sent = ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN) return 0;
    if (errno != EINTR) return broken(errno);
  }
}

Result<bool> ByteStream::flush() {
  if (tls_) return tls_->flush();
  return true;
}

}  // namespace vmem::rdma
