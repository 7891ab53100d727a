// The times of the directory, and what it is told of the cluster's nodes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/node.hpp"
#include "cluster/enrollment/enrollment_config.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster::directory {

struct DirectoryConfig {
  std::uint64_t poll_us = 1'000'000;     // of the registry's regions and names
  std::uint64_t poll_again_us = 20'000;  // when a peer has mentioned something newer
  std::uint64_t resend_us = 300'000;     // of what was not answered
  std::uint64_t keep_us = 5'000'000;     // for a node to fetch a copy, before another is asked
  std::uint64_t avoid_us = 10'000'000;   // a node that could not keep a copy gets none meanwhile
  std::uint64_t retry_us = 100'000;      // of commits, at first
  std::uint64_t race_us = 200'000;       // between the ranks of nodes that may take a home over
  // False: this node drops what it has cached without a word, so it promises to keep nothing but
  // what it published, and has dropped what it asks for again.
  bool keeps_copies = true;
  std::uint32_t pages_in_flight = 64;  // that one home has copied or asks for at one time
};

struct KnownNode {
  NodeId id{};
  bool daemon = false;          // one that takes copies
  bool without_copies = false;  // a daemon that takes none
  bool draining = false;
  bool forced = false;           // it drains, also where that leaves fewer copies than wanted
  std::string rack, host;        // "": unknown, so it differs from none
  std::uint64_t free_bytes = 0;  // for copies
  bool operator==(const KnownNode&) const = default;
};

// The nodes as of a revision of the registry, this node among them.
struct NodesView {
  Revision as_of{};
  std::vector<KnownNode> nodes;  // by id

  const KnownNode* find(NodeId id) const noexcept {
    const auto found = std::ranges::lower_bound(nodes, id, {}, &KnownNode::id);
    return found != nodes.end() && found->id == id ? &*found : nullptr;
  }
  // Whether the membership of a node that was a member at revision `since` has ended, for certain.
  bool over(NodeId id, Revision since) const noexcept { return as_of >= since && find(id) == nullptr; }
};

// Why this node has no connection to another one.
struct NoPath {
  std::string why;
  // By what one of the two nodes demands, at each of the other's addresses: the next attempt ends
  // the same.
  bool refused = false;
  std::uint64_t at_us = 0;  // of the last attempt
};
// None: there is a connection, or no attempt has failed.
using PathTrouble = std::function<std::optional<NoPath>(NodeId)>;

// A random wait around the given one.
inline std::uint64_t spread_us(std::uint64_t wait_us, const Random& random) {
  return wait_us / 2 + random() % (wait_us + 1);
}

}  // namespace vmem::cluster::directory
