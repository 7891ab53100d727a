// Nodes without a secret talk over Unix sockets in a directory that only their user may enter. A
// loopback address names such a socket: 127.0.0.1:7000 is DIRECTORY/127.0.0.1:7000. No port opens.
#pragma once

#include <sys/un.h>

#include <string>

#include "base/closed_on_fork.hpp"
#include "base/file_descriptor.hpp"
#include "rdma/crypto.hpp"
#include "rdma/socket_address.hpp"

namespace vmem::rdma::stream {

// /run/user/UID/vmem, or /tmp/vmem-UID; made with mode 0700. Errors: INVALID_OPTION if somebody else
// owns it or may enter it.
Result<std::string> socket_directory();
// Errors: INVALID_OPTION if the path is too long.
Result<sockaddr_un> socket_path(const SocketAddress& address);

// Listens on the socket that an address names; the name is free again when this ends.
class LocalListener {
 public:
  // Port 0: one that is free. Errors: INVALID_OPTION if another process listens there.
  static Result<LocalListener> create(const Crypto& crypto, const SocketAddress& address);
  LocalListener(LocalListener&&) = default;
  LocalListener& operator=(LocalListener&&) = delete;
  ~LocalListener();

  int socket() const noexcept { return socket_.get(); }
  const std::string& address() const noexcept { return address_; }

 private:
  LocalListener() = default;
  static Result<LocalListener> try_listen(const SocketAddress& address);
  OwnDescriptor lock_, socket_;
  std::string address_;
  std::string path_;  // set once the lock is held
};

// The process at the other end (of a listener's connection: the one that called listen), readable once it has ended; none
// if the kernel does not say. Where its number has gone to another process meanwhile it is that one: it ended before.
FileDescriptor peer_process(int socket);

// Its number here; 0 where it has none, as in another container.
pid_t peer_number(int socket);

// Errors: INVALID_OPTION if the process at the other end belongs to another user.
Status check_peer_user(int socket);

}  // namespace vmem::rdma::stream
