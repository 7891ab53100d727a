// How two nodes part, on the socket of their handshake: who leaves shuts its half down, and what it has opened for the other stays until
// that one has shut down its own.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "base/file_descriptor.hpp"

namespace vmem::rdma {

// How long the other has. One that runs needs until its next look at the socket.
inline constexpr std::uint64_t kFarewellUs = 100'000;

// After the handshake the other says nothing unless it leaves. What it said stays there.
inline bool is_leaving(const FileDescriptor& socket) {
  char any = 0;
  return ::recv(socket.get(), &any, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

// Whether its end is there; reads something of what comes before it.
inline bool has_left(const FileDescriptor& socket) {
  std::array<char, 4096> any;
  ssize_t got = 1;
  for (int i = 0; got > 0 && i < 16; ++i) got = ::recv(socket.get(), any.data(), any.size(), MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace vmem::rdma
