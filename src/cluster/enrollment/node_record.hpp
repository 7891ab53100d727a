// The record "nodes/ID": what a node says of itself to all others. It is under the node's lease, so
// its absence proves that the node's membership is over.
//
// "drain/ID" beside it asks the node to leave: it gets nothing new. Its value is a DrainOrder;
// another value is the order of the defaults. Anybody may put it; it is under the same lease, so it
// goes with the node. So does "holds/ID", where the node says what it holds for others.
//
// "drain/ID/hbm" asks it to lend less HBM than its record says: an HbmLimit. It is read with the
// orders above it. "drain/orders" is changed with each order, whichever node it is to. So who gives
// one can require that no other came since it looked at the cluster.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

inline constexpr std::string_view kNodesPrefix = "nodes/", kDrainPrefix = "drain/", kHoldsPrefix = "holds/";
inline constexpr std::string_view kOrdersKey = "drain/orders";

// The label that says which GPU's HBM a node lends, and how pages get there.
inline constexpr std::string_view kHbmLabel = "hbm";

// The part of a daemon's HBM that programs of its host map instead of sending pages there.
struct MappedHbm {
  std::string socket;       // where the daemon lends it: a path on its host
  std::string gpu;          // the GPU's UUID: see gpu::format_uuid
  std::uint64_t bytes = 0;  // at most; 0: there is no such part
  bool operator==(const MappedHbm&) const = default;
};

// Versions of the protocol between nodes that a node serves. Any two nodes of a cluster have one in
// common, so it is upgraded node by node.
struct VersionRange {
  std::uint32_t least = 1, most = 1;
  bool overlaps(const VersionRange& other) const { return least <= other.most && other.least <= most; }
  bool operator==(const VersionRange&) const = default;
};

struct NodeRecord {
  struct Lends {
    std::uint64_t memory = 0, disk = 0, hbm = 0;  // bytes
    // Bytes, for copies of published regions.
    std::uint64_t copies = 0;
    std::uint64_t pages() const { return memory + disk + hbm; }  // for programs' pages
    bool operator==(const Lends&) const = default;
  };
  Incarnation incarnation{};
  std::vector<std::string> addresses;  // the first is preferred; none: nobody connects to it
  std::uint64_t transport = 0;         // the id that it claims on connections
  // Its process, for others on its host: see ProcessId, this_boot() and pid_namespace().
  std::string boot;
  std::uint64_t pids = 0, pid = 0, started = 0;
  std::string kind;  // "program", "daemon"
  VersionRange versions;
  std::string trust;  // how it tells whom to talk to: see trust_of(); "": unknown
  std::map<std::string, std::string> labels;
  Lends lends;
  MappedHbm mapped;   // part of lends.hbm
  std::string token;  // random, of one enrollment: tells a node its own record
  // For pages that reach the node over the network.
  std::uint64_t stored_pages() const { return lends.pages() - mapped.bytes; }
  bool operator==(const NodeRecord&) const = default;
};

struct DrainOrder {
  std::uint64_t rate = 0;  // bytes per second at which each program moves its pages; 0: its default
  bool exit = false;       // the node ends once it holds nothing
  // Where no other node can take a copy of a published region, one on another daemon is enough.
  bool force = false;
  bool operator==(const DrainOrder&) const = default;
};

struct HbmLimit {
  std::uint64_t bytes = 0;  // the node lends this much at most
  bool operator==(const HbmLimit&) const = default;
};

// The bytes of both parts of a node's HBM, of which it lends `limit` at most. The part that is
// mapped is the last to shrink: its programs use it at the rate of the link between GPUs.
struct HbmParts {
  std::uint64_t mapped = 0, stored = 0;  // by programs of its host; over the network
  bool operator==(const HbmParts&) const = default;
};
HbmParts hbm_parts(std::uint64_t lent, std::uint64_t mapped, std::optional<HbmLimit> limit);

// Bytes that a node has of others, and how it sends some of them.
struct Holdings {
  std::uint64_t memory = 0, disk = 0, hbm = 0;  // pages
  std::uint64_t copies = 0;                     // of published regions
  std::uint64_t leased = 0;                     // room that others may use at any time
  std::uint64_t hbm_taken = 0;                  // of its GPU, with pages in it or without
  std::uint64_t hbm_mapped = 0;                 // part of hbm: what programs of its host map
  std::uint64_t hbm_mapper = 0;                 // pid of the one that maps most; 0: none does
  // Pages that it has sent from HBM: from its slabs, and through staging.
  std::uint64_t hbm_direct = 0, hbm_staged = 0;
  // It knows that it is to leave, and grants no more room.
  bool drains = false;
  std::uint64_t pages() const { return memory + disk + hbm; }
  // Pages that need room on another node if they are to leave; what is mapped goes to its owners.
  std::uint64_t stored_hbm() const { return hbm - hbm_mapped; }
  std::uint64_t stored() const { return pages() - hbm_mapped; }
  // Whether only counts of what was sent differ.
  bool holds_as(Holdings other) const {
    other.hbm_direct = hbm_direct;
    other.hbm_staged = hbm_staged;
    return *this == other;
  }
  bool any() const { return pages() + copies + leased != 0; }
  bool operator==(const Holdings&) const = default;
};

std::string json_of(const NodeRecord& record);
std::string json_of(const DrainOrder& order);
std::string json_of(const HbmLimit& limit);
std::string json_of(const Holdings& holdings);
// Errors: INVALID_OPTION, naming record and field.
Result<NodeRecord> parse_node_record(std::string_view key, std::string_view value);
DrainOrder parse_drain_order(std::string_view key, std::string_view value);
Result<HbmLimit> parse_hbm_limit(std::string_view key, std::string_view value);
Result<Holdings> parse_holdings(std::string_view key, std::string_view value);  // errors: as above

std::string node_key(NodeId id);
std::string drain_key(NodeId id);
std::string hbm_limit_key(NodeId id);
std::string holds_key(NodeId id);
// The id in a key that begins with the prefix; none if what follows is not a number from 1.
std::optional<NodeId> id_in_key(std::string_view key, std::string_view prefix);
// The id in a key of an HbmLimit; none if it is another key.
std::optional<NodeId> id_in_hbm_limit_key(std::string_view key);

// Puts or erases the mark that the node of this record, as read from the registry, is to leave. Not
// done if the node's membership has ended.
Commit drain_commit(const Record& node, const std::optional<DrainOrder>& order);
// The same for a limit; none: it lends all that it has.
Commit hbm_limit_commit(const Record& node, const std::optional<HbmLimit>& limit);
inline Commit drain_commit(const Record& node, bool drain) {
  return drain_commit(node, drain ? std::optional(DrainOrder{}) : std::nullopt);
}

}  // namespace vmem::cluster
