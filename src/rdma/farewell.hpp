// How two nodes part, on the connection where they proved who they are: the one that leaves shuts its half down, and keeps what it
// has opened for the other until that one has shut down its own.
#pragma once

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstdint>

namespace vmem::rdma {

// How long the other has. One that runs needs until its next look at the socket.
inline constexpr std::uint64_t kFarewellUs = 100'000;

// After the introductions the other says nothing unless it leaves. What it said stays there.
inline bool is_leaving(int socket) {
  char any = 0;
  return ::recv(socket, &any, 1, MSG_PEEK | MSG_DONTWAIT) >= 0 || (errno != EAGAIN && errno != EINTR);
}

// Whether its end is there; reads something of what comes before it.
inline bool has_left(int socket) {
  std::array<char, 4096> any;
  ssize_t got = 1;
  for (int i = 0; got > 0 && i < 16; ++i) got = ::recv(socket, any.data(), any.size(), MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

}  // namespace vmem::rdma
