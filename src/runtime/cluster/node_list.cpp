#include "runtime/cluster/node_list.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/log.hpp"

namespace vmem::runtime {
namespace {

using cluster::Reply;

// Waits for replies of a registry.
class Waiter {
 public:
  void ready() {
    const std::lock_guard lock(mutex_);
    ready_ = true;
    changed_.notify_all();
  }
  bool wait_until(std::chrono::steady_clock::time_point end) {
    std::unique_lock lock(mutex_);
    const bool came = changed_.wait_until(lock, end, [&] { return ready_; });
    ready_ = false;
    return came;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = false;  // protected by mutex_
};

Result<std::vector<cluster::Record>> records_in(const Reply& reply) {
  if (const auto* const error = std::get_if<Error>(&reply.what)) return std::unexpected(*error);
  return std::get<cluster::Read>(reply.what).records;
}

}  // namespace

Result<std::vector<ClusterNode>> list_nodes(const RegistryAccess& access, std::uint64_t most_us) {
  Waiter waiter;
  VMEM_ASSIGN(const auto registry, open_registry(access, [&] { waiter.ready(); }));
  const auto nodes = registry->post(cluster::ReadPrefix{std::string(cluster::kNodesPrefix)});
  const auto drains = registry->post(cluster::ReadPrefix{std::string(cluster::kDrainPrefix)});
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(most_us);
  std::vector<Reply> replies;
  while (replies.size() < 2) {
    if (!waiter.wait_until(end)) return fail(VMEM_ERROR_TIMEOUT, "the cluster's registry did not answer in time");
    registry->poll(replies);
  }
  const auto reply_to = [&](cluster::RequestId id) { return *std::ranges::find(replies, id, &Reply::request); };
  VMEM_ASSIGN(const auto node_records, records_in(reply_to(nodes)));
  VMEM_ASSIGN(const auto drain_records, records_in(reply_to(drains)));
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
