// Identity of a cluster member.
#pragma once

#include <compare>
#include <cstdint>

namespace vmem {

enum class NodeId : std::uint64_t {};       // configured; equal across restarts. 0: none
enum class Incarnation : std::uint64_t {};  // one run of a node; later runs have larger values
enum class Epoch : std::uint64_t {};        // version of the membership; only grows

struct NodeIdentity {
  NodeId id{};
  Incarnation incarnation{};
  bool operator==(const NodeIdentity&) const = default;
};

}  // namespace vmem
