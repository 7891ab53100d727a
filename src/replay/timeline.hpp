// What a replay kept busy, and when.
#pragma once

#include <cstdint>
#include <vector>

namespace vmem::replay {

enum class Track : std::uint8_t { computing, link_in, link_out, peer_in, peer_out, below_in, below_out, mover };
struct Work {
  Track track = Track::computing;
  std::uint32_t stream = 0;  // of `computing`: in the order in which streams began
  std::uint64_t begin_ns = 0, end_ns = 0;
};
using Timeline = std::vector<Work>;

}  // namespace vmem::replay
