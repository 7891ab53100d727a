// Orderly close on the connection that authenticated two nodes. The leaving node shuts down its
// half, and keeps its resources for the other node until that node has shut down its half too.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace vmem::rdma {

// Time limit for the other node. A running node needs only until its next check of the socket.
inline constexpr std::uint64_t kFarewellUs = 100'000;

// After the introductions the other node sends nothing unless it leaves. Peeks: reads no data.
inline bool is_leaving(int socket) {
  char any = 0;
  return ::recv(socket, &any, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

// True at the end of the stream or on an error; reads and discards up to 64 KiB before it.
inline bool has_left(int socket) {
  std::array<char, 4096> any;
  ssize_t got = 1;
  for (int i = 0; got > 0 && i < 16; ++i) got = ::recv(socket, any.data(), any.size(), MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace vmem::rdma
