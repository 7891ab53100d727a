// Two connected non-blocking local sockets: the decoder's, and the one of the peer that the input
// plays.
#pragma once

#include <sys/socket.h>

#include "base/file_descriptor.hpp"
#include "fuzz/input.hpp"

namespace vmem::fuzz {

struct SocketPair {
  explicit SocketPair(int type = SOCK_STREAM) {
    int ends[2];
    require(::socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "sockets can be made");
    ours = FileDescriptor(ends[0]);
    theirs = FileDescriptor(ends[1]);
  }
  FileDescriptor ours, theirs;
};

// Returns false if the socket did not take all bytes, because it is full or closed.
inline bool send_all(int socket, ConstBytes bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes = bytes.subspan(std::size_t(sent));
  }
  return true;
}

}  // namespace vmem::fuzz
