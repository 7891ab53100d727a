#include "bench/socket_pair.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace vmem::bench {

std::unexpected<Error> socket_failed(const char* what) {
  const int error = errno;
  return fail(VMEM_ERROR_DRIVER, fmt::format("{}: {}", what, std::strerror(error)), error);
}

Result<Listener> listen_here() {
  Listener listener{FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))};
  listener.address.sin_family = AF_INET;
  listener.address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const address = reinterpret_cast<sockaddr*>(&listener.address);
  socklen_t size = sizeof(listener.address);
  if (!listener.socket || ::bind(listener.socket.get(), address, size) != 0 ||
      ::listen(listener.socket.get(), 1) != 0 || ::getsockname(listener.socket.get(), address, &size) != 0)
    return socket_failed("a socket on the loopback device");
  return listener;
}

Result<SocketPair> connect_pair(SocketKind kind) {
  if (kind == SocketKind::local) {
    int ends[2] = {-1, -1};
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
      return socket_failed("a pair of local sockets");
    return SocketPair{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
  }
  VMEM_ASSIGN(const Listener listener, listen_here());
  SocketPair pair{FileDescriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), {}};
  const auto* const address = reinterpret_cast<const sockaddr*>(&listener.address);
  if (!pair.from || ::connect(pair.from.get(), address, sizeof(listener.address)) != 0)
    return socket_failed("connecting a socket on the loopback device");
  pair.to = FileDescriptor(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!pair.to) return socket_failed("accepting a socket on the loopback device");
  return pair;
}

}  // namespace vmem::bench
