// Two connected sockets of this machine, for limits that bare messages between processes show.
#pragma once

#include <netinet/in.h>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"

namespace vmem::bench {

enum class SocketKind { tcp, local };

// A socket that listens on a free port of the loopback device.
struct Listener {
  FileDescriptor socket;
  sockaddr_in address{};
};
// Errors: DRIVER.
Result<Listener> listen_here();

struct SocketPair {
  FileDescriptor from, to;
};
// TCP: over the loopback device. Errors: DRIVER.
Result<SocketPair> connect_pair(SocketKind kind);

// DRIVER, with what errno says.
std::unexpected<Error> socket_failed(const char* what);

}  // namespace vmem::bench
