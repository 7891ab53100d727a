#include "runtime/cluster/node_list.hpp"

#include <map>
#include <string>

#include "base/log.hpp"

namespace vmem::runtime {
namespace {

using Nodes = std::map<NodeId, ClusterNode>;

Nodes nodes_in(const std::vector<cluster::Record>& records) {
  Nodes found;
  for (const cluster::Record& record : records) {
    const auto id = cluster::id_in_key(record.key, cluster::kNodesPrefix);
    auto node = cluster::parse_node_record(record.key, record.value);
    if (id && node) {
      found.emplace(*id, ClusterNode{*id, *std::move(node)});
    } else {
      VMEM_LOG_WARN("the registry's record {} is not a node's: {}", record.key,
                    node ? "its key has no number" : node.error().message);
    }
  }
  return found;
}

// Null: the record is of no node that is listed.
ClusterNode* node_of(Nodes& nodes, const cluster::Record& record, std::string_view prefix) {
  const auto id = cluster::id_in_key(record.key, prefix);
  const auto node = id ? nodes.find(*id) : nodes.end();
  return node == nodes.end() ? nullptr : &node->second;
}

}  // namespace

Result<std::vector<ClusterNode>> list_nodes(RegistryClient& registry) {
  VMEM_ASSIGN(const auto node_records, registry.read(std::string(cluster::kNodesPrefix)));
  VMEM_ASSIGN(const auto drain_records, registry.read(std::string(cluster::kDrainPrefix)));
  VMEM_ASSIGN(const auto holds_records, registry.read(std::string(cluster::kHoldsPrefix)));
  Nodes found = nodes_in(node_records);
  for (const cluster::Record& record : drain_records) {
    if (ClusterNode* const node = node_of(found, record, cluster::kDrainPrefix))
      node->drain = cluster::parse_drain_order(record.key, record.value);
    const auto limited = cluster::id_in_hbm_limit_key(record.key);
    const auto node = limited ? found.find(*limited) : found.end();
    const auto limit = cluster::parse_hbm_limit(record.key, record.value);
    if (node != found.end() && limit) node->second.hbm_limit = *limit;
  }
  for (const cluster::Record& record : holds_records) {
    ClusterNode* const node = node_of(found, record, cluster::kHoldsPrefix);
    const auto holds = cluster::parse_holdings(record.key, record.value);
    if (node == nullptr || !holds) continue;
    node->holds = *holds;
    node->holds_at = record.modified;
  }
  std::vector<ClusterNode> listed;
  for (auto& [id, node] : found) listed.push_back(std::move(node));
  return listed;
}

std::set<NodeId> members_of(const std::vector<cluster::Record>& records) {
  std::set<NodeId> members;
  for (const cluster::Record& record : records)
    if (const auto id = cluster::id_in_key(record.key, cluster::kNodesPrefix)) members.insert(*id);
  return members;
}

Result<std::vector<ClusterNode>> list_nodes(const RegistryAccess& access, std::uint64_t most_us) {
  VMEM_ASSIGN(const auto registry, RegistryClient::open(access, most_us));
  return list_nodes(*registry);
}

}  // namespace vmem::runtime
