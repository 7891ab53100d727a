// The record "nodes/ID": what a node says of itself to all others. It is under the node's lease, so
// its absence proves that the node's membership is over.
//
// "drain/ID" beside it, with any value, asks the node to leave: it gets nothing new. Anybody may
// put it; it is under the same lease, so it goes with the node.
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

inline constexpr std::string_view kNodesPrefix = "nodes/", kDrainPrefix = "drain/";

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

std::string json_of(const NodeRecord& record);
// Errors: INVALID_OPTION, naming record and field.
Result<NodeRecord> parse_node_record(std::string_view key, std::string_view value);

std::string node_key(NodeId id);
std::string drain_key(NodeId id);
// The id in a key that begins with the prefix; none if what follows is not a number from 1.
std::optional<NodeId> id_in_key(std::string_view key, std::string_view prefix);

// Puts or erases the mark that the node of this record, as read from the registry, is to leave. Not
// done if the node's membership has ended.
Commit drain_commit(const Record& node, bool drain);

}  // namespace vmem::cluster
