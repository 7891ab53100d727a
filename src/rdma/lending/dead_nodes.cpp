#include "rdma/lending/dead_nodes.hpp"

#include <poll.h>

#include <algorithm>
#include <utility>

namespace vmem::rdma {

void DeadNodes::watch(NodeIdentity node, ProcessRef process) {
  if (process) watched_[node.id] = {node.incarnation, std::move(process)};
}

void DeadNodes::forget(NodeId node) { watched_.erase(node); }

std::vector<NodeIdentity> DeadNodes::find() {
  std::vector<NodeIdentity> found;
  if (watched_.empty()) return found;
  std::vector<pollfd> ends;
  ends.reserve(watched_.size());
  for (const auto& [id, watched] : watched_) ends.push_back({watched.second->get(), POLLIN, 0});
  if (::poll(ends.data(), ends.size(), 0) <= 0) return found;
  auto end = ends.begin();
  for (const auto& [id, watched] : watched_) {
    if ((end++->revents & POLLIN) != 0) found.push_back({id, watched.first});
  }
  for (const NodeIdentity& each : found) forget(each.id);
  return found;
}

void DeadNodes::reported(NodeIdentity node) {
  const auto [known, is_new] = reported_.try_emplace(node.id, node.incarnation);
  known->second = std::max(known->second, node.incarnation);
  if (!is_new) return;
  eldest_.push_back(node.id);
  if (eldest_.size() <= kMostReported) return;
  reported_.erase(eldest_.front());
  eldest_.pop_front();
}

bool DeadNodes::ended(NodeIdentity node) const {
  const auto known = reported_.find(node.id);
  return known != reported_.end() && node.incarnation <= known->second;
}

}  // namespace vmem::rdma
