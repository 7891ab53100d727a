// The record "nodes/ID": what a node says of itself to all others. It is under the node's lease, so
// its absence proves that the node's membership is over.
//
// "drain/ID" beside it asks the node to leave: it gets nothing new. Its value is a DrainOrder;
// another value is the order of the defaults. Anybody may put it; it is under the same lease, so it
// goes with the node. So does "holds/ID", where the node says what it holds for others.
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

struct NodeRecord {
  struct Lends {
    std::uint64_t memory = 0, disk = 0, hbm = 0;  // bytes
    std::uint64_t copies = 0;                     // bytes, for copies of published regions
    bool operator==(const Lends&) const = default;
  };
  Incarnation incarnation{};
  std::vector<std::string> addresses;  // the first is preferred; none: nobody connects to it
  std::uint64_t transport = 0;         // the id that it claims on connections
  // Its process, for others on its host: see ProcessId, this_boot() and pid_namespace().
  std::string boot;
  std::uint64_t pids = 0, pid = 0, started = 0;
  std::string kind;  // "program", "daemon"
  std::map<std::string, std::string> labels;
  Lends lends;
  std::string token;  // random, of one enrollment: tells a node its own record
  bool operator==(const NodeRecord&) const = default;
};

struct DrainOrder {
  std::uint64_t rate = 0;  // bytes per second at which each program moves its pages; 0: its default
  bool exit = false;       // the node ends once it holds nothing
  bool operator==(const DrainOrder&) const = default;
};

// Bytes that a node has of others.
struct Holdings {
  std::uint64_t memory = 0, disk = 0;  // pages
  std::uint64_t copies = 0;            // of published regions
  std::uint64_t leased = 0;            // room that others may use at any time
  bool drains = false;                 // it knows that it is to leave, and grants no more room
  std::uint64_t pages() const { return memory + disk; }
  bool any() const { return memory + disk + copies + leased != 0; }
  bool operator==(const Holdings&) const = default;
};

std::string json_of(const NodeRecord& record);
std::string json_of(const DrainOrder& order);
std::string json_of(const Holdings& holdings);
// Errors: INVALID_OPTION, naming record and field.
Result<NodeRecord> parse_node_record(std::string_view key, std::string_view value);
DrainOrder parse_drain_order(std::string_view key, std::string_view value);
Result<Holdings> parse_holdings(std::string_view key, std::string_view value);  // errors: as above

std::string node_key(NodeId id);
std::string drain_key(NodeId id);
std::string holds_key(NodeId id);
// The id in a key that begins with the prefix; none if what follows is not a number from 1.
std::optional<NodeId> id_in_key(std::string_view key, std::string_view prefix);

// Puts or erases the mark that the node of this record, as read from the registry, is to leave. Not
// done if the node's membership has ended.
Commit drain_commit(const Record& node, const std::optional<DrainOrder>& order);
inline Commit drain_commit(const Record& node, bool drain) {
  return drain_commit(node, drain ? std::optional(DrainOrder{}) : std::nullopt);
}

}  // namespace vmem::cluster
