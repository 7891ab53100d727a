// Nodes without a secret connect over Unix sockets in a directory that only their user may enter. A
// loopback address names such a socket: 127.0.0.1:7000 is DIRECTORY/127.0.0.1:7000. No TCP port is
// opened.
#pragma once

#include <sys/un.h>

#include <string>

#include "base/closed_on_fork.hpp"
#include "base/file_descriptor.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/trust/crypto.hpp"

namespace vmem::rdma {

// /run/user/UID/vmem, or /tmp/vmem-UID; created with mode 0700. Errors: INVALID_OPTION if it cannot
// be created, or another user owns it or may enter it.
Result<std::string> socket_directory();
// Errors: as socket_directory(); INVALID_OPTION if the path is too long.
Result<sockaddr_un> socket_path(const SocketAddress& address);

// Removes the names that killed processes have left in that directory. Only those that port 0
// picks: the next owner of another one removes what is left of it.
void clear_left_names();

// Listens on the socket of an address; the destructor frees the name, and so does the process's
// exit.
class LocalListener {
 public:
  // Port 0: picks a free port, and removes the names that killed processes have left. Errors:
  // INVALID_OPTION, as when another process listens there.
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

// A pidfd of the peer process (seen by a client: the process that called listen), readable once the
// process has ended. Invalid if the kernel gives none. After reuse of the pid it refers to the new
// process: the peer ended before.
FileDescriptor peer_process(int socket);

// Pid of the peer in this pid namespace; 0 if it has none, as in another container.
pid_t peer_number(int socket);

// Errors: INVALID_OPTION if the peer process belongs to another or an unknown user.
Status check_peer_user(int socket);

}  // namespace vmem::rdma
