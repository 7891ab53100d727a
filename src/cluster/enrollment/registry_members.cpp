#include "cluster/enrollment/registry_members.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

#include "base/log.hpp"
#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

}  // namespace

void RegistryMembers::become(NodeId self) {
  self_ = self;
  roster_.become({self, incarnation_});
}

std::map<NodeId, RegistryMembers::Node> RegistryMembers::read(const NodesReading& reading) {
  std::map<NodeId, Node> nodes;
  for (const Record& record : reading.nodes) {
    const std::optional<NodeId> id = id_in_key(record.key, kNodesPrefix);
    if (id && *id == self_) continue;
    const auto known = id ? nodes_.find(*id) : nodes_.end();
    if (known != nodes_.end() && known->second.modified == record.modified) {
      nodes.emplace(*id, known->second);
      continue;
    }
    Result<NodeRecord> parsed = id ? parse_node_record(record.key, record.value)
                                   : fail(VMEM_ERROR_INVALID_OPTION,
                                          fmt::format("the registry's key '{}' names no node", printable(record.key)));
    if (parsed) {
      nodes.emplace(*id, Node{.record = std::move(*parsed), .modified = record.modified});
      continue;
    }
    if (const auto occurrence = damaged_.next(); occurrence.logged)
      VMEM_LOG_WARN("{}; nothing is learned from the record ({} such readings)", parsed.error().message,
                    occurrence.count);
    if (known != nodes_.end())
      nodes.emplace(*id, known->second);
    else if (id)
      nodes.emplace(*id, Node{.record = {}, .modified = record.modified});
  }
  return nodes;
}

// A process that died leaves its record for a while; the address is that of the later one.
std::vector<Peer> RegistryMembers::peers() const {
  std::vector<Peer> peers;
  std::set<std::string_view> taken;
  for (auto each = nodes_.rbegin(); each != nodes_.rend(); ++each) {
    const std::vector<std::string>& addresses = each->second.record.addresses;
    const bool reachable = !addresses.empty() && taken.insert(addresses.front()).second;
    peers.push_back({.id = each->first, .address = reachable ? addresses.front() : ""});
  }
  return peers;
}

void RegistryMembers::take_in_drains(const std::map<NodeId, DrainOrder>& draining,
                                     std::vector<EnrollmentEvent>& events) {
  const std::map<NodeId, DrainOrder> before = std::exchange(draining_, draining);
  for (const auto& [id, order] : draining_) {
    const auto was = before.find(id);
    if (was == before.end() || was->second != order) events.emplace_back(DrainChanged{.node = id, .draining = true});
  }
  for (const auto& [id, order] : before)
    if (!draining_.contains(id)) events.emplace_back(DrainChanged{.node = id, .draining = false});
}

void RegistryMembers::advance(Revision revision) {
  const auto epoch = static_cast<std::uint64_t>(revision);
  if (const Status advanced = roster_.advance(Epoch{epoch}, peers()); !advanced)
    VMEM_LOG_ERROR("the list of nodes in the registry (revision {}) is contradictory, and the earlier one stays: {}",
                   epoch, advanced.error().message);
}

void RegistryMembers::take_in(const NodesReading& reading, std::vector<EnrollmentEvent>& events) {
  const std::map<NodeId, Node> before = std::exchange(nodes_, read(reading));
  known_ = true;
  as_of_ = reading.revision;
  bool changed = false;
  for (const auto& [id, node] : nodes_) {
    const auto was = before.find(id);
    if (was != before.end() && was->second.modified == node.modified) continue;
    changed = true;
    if (was == before.end())
      events.emplace_back(NodeAppeared{id});
    else
      events.emplace_back(NodeChanged{id});
  }
  for (const auto& [id, node] : before) {
    if (nodes_.contains(id)) continue;
    changed = true;
    events.emplace_back(NodeGone{id});
  }
  if (changed) advance(reading.revision);
  take_in_drains(reading.draining, events);
  hbm_limits_ = reading.hbm_limits;
}

Status RegistryMembers::heard(const std::string& address, NodeIdentity node) {
  const auto known = nodes_.find(node.id);
  if (known != nodes_.end() && known->second.record.incarnation != node.incarnation)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("node {} has incarnation {} in the registry, and says that it is incarnation {}",
                            number(node.id), static_cast<std::uint64_t>(known->second.record.incarnation),
                            static_cast<std::uint64_t>(node.incarnation)));
  if (known == nodes_.end() && node.id != self_)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("node {} is not among the cluster's nodes as of revision {}: it has left, or has enrolled "
                            "since; ask again after the next reading",
                            number(node.id), static_cast<std::uint64_t>(roster_.view().epoch)));
  return roster_.heard(address, node);
}

}  // namespace vmem::cluster
