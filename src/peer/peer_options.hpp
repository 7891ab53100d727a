// Options of this module. GPU memory shared between GPUs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

inline constexpr std::uint64_t kSmallestLent = std::uint64_t{2} << 20;

// One entry of --peers: a GPU whose memory takes pages of other GPUs.
struct PeerSpec {
  int device = 0;
  std::optional<std::uint64_t> bytes;  // nullopt: all remaining memory
  // not empty: socket of the lending process; replaces `device`
  std::string socket;
};

// One entry of --lend: GPU memory that other processes may borrow.
struct LendSpec {
  int device = 0;
  std::optional<std::uint64_t> bytes;  // nullopt: all that this process leaves
  std::string socket;                  // path of the socket to serve
};

struct PeerOptions {
  std::vector<PeerSpec> peers;  // --peers: "off" (empty) or "1:40GiB,2,/tmp/gpu3"
  std::vector<LendSpec> lend;   // --lend: "off" (empty) or "0:20GiB:/tmp/gpu0"
};

std::vector<Option<PeerOptions>> peer_options();

}  // namespace vmem
