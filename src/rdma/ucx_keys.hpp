// Whose descriptor it was that epoll reported: links' sockets have their peer's id, loops one key together.
#pragma once

#include <cstdint>

namespace vmem::rdma {

inline constexpr std::uint64_t kLoopKey = UINT64_MAX;
inline constexpr std::uint64_t kWakeupKey = UINT64_MAX - 1;

}  // namespace vmem::rdma
