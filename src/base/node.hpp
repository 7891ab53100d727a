// Who takes part in a cluster.
#pragma once

#include <compare>
#include <cstdint>

namespace vmem {

enum class NodeId : std::uint64_t {};       // given by configuration; equal across restarts. 0: none
enum class Incarnation : std::uint64_t {};  // one run of a node; a later run has a larger one
enum class Epoch : std::uint64_t {};        // a version of the membership; only grows

struct NodeIdentity {
  NodeId id{};
  Incarnation incarnation{};
  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

}  // namespace vmem
