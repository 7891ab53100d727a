#include "runtime/cluster/node_list.hpp"

#include <map>
#include <string>

#include "base/log.hpp"
#include "runtime/cluster/registry_reader.hpp"

namespace vmem::runtime {
Result<std::vector<ClusterNode>> list_nodes(const RegistryAccess& access, std::uint64_t most_us) {
  VMEM_ASSIGN(const auto reader, RegistryReader::open(access, most_us));
  VMEM_ASSIGN(const auto node_records, reader->read(std::string(cluster::kNodesPrefix)));
  VMEM_ASSIGN(const auto drain_records, reader->read(std::string(cluster::kDrainPrefix)));
  std::map<NodeId, ClusterNode> found;
  for (const cluster::Record& record : node_records) {
    const auto id = cluster::id_in_key(record.key, cluster::kNodesPrefix);
    auto node = cluster::parse_node_record(record.key, record.value);
    if (id && node) {
      found.emplace(*id, ClusterNode{*id, *std::move(node), false});
    } else {
      VMEM_LOG_WARN("the registry's record {} is not a node's: {}", record.key,
                    node ? "its key has no number" : node.error().message);
    }
  }
  for (const cluster::Record& record : drain_records) {
    const auto id = cluster::id_in_key(record.key, cluster::kDrainPrefix);
    if (const auto node = id ? found.find(*id) : found.end(); node != found.end()) node->second.draining = true;
  }
  std::vector<ClusterNode> listed;
  for (auto& [id, node] : found) listed.push_back(std::move(node));
  return listed;
}

}  // namespace vmem::runtime
