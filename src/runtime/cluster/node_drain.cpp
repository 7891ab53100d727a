#include "runtime/cluster/node_drain.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/sizes.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::runtime {
namespace {

constexpr int kTries = 5;  // the node's record changes rarely

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

std::uint64_t left_of(std::uint64_t all, std::uint64_t used) { return all - std::min(all, used); }

Status refuse(std::string message) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(message)); }

Result<const ClusterNode*> find_lender(const std::vector<ClusterNode>& nodes, NodeId id) {
  const auto found = std::ranges::find(nodes, id, &ClusterNode::id);
  if (found == nodes.end())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("the cluster has no node {}: `vmem node list` names those that it has", number(id)));
  const cluster::NodeRecord::Lends& lends = found->record.lends;
  if (lends.pages() + lends.copies == 0)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("node {} is a {} and lends nothing, so there is nothing to move away from it", number(id),
                            found->record.kind));
  return &*found;
}

// Of HBM that the node lends over the network, under that limit.
std::uint64_t stored_hbm(const ClusterNode& node, const std::optional<cluster::HbmLimit>& limit) {
  return cluster::hbm_parts(node.record.lends.hbm, node.record.mapped.bytes, limit).stored;
}
std::uint64_t stored_hbm(const ClusterNode& node) { return stored_hbm(node, node.hbm_limit); }

std::uint64_t room_on(const ClusterNode& node) {
  const cluster::Holdings holds = node.holds.value_or(cluster::Holdings{});
  return left_of(node.record.lends.memory, holds.memory) + left_of(node.record.lends.disk, holds.disk) +
         left_of(stored_hbm(node), holds.stored_hbm());
}

// Pages go to other nodes, and to memory and disks of the same one. What is mapped has room in its
// programs' host memory.
Status check_room_for_limit(const std::vector<ClusterNode>& nodes, const ClusterNode& node, std::uint64_t bytes) {
  const std::uint64_t held = node.holds.value_or(cluster::Holdings{}).stored_hbm();
  const std::uint64_t leaves = left_of(held, stored_hbm(node, cluster::HbmLimit{bytes}));
  std::uint64_t room = room_on(node) - left_of(stored_hbm(node), held);
  for (const ClusterNode& other : nodes) room += other.id == node.id || other.drain ? 0 : room_on(other);
  if (leaves <= room) return {};
  return refuse(
      fmt::format("node {} holds {} of pages in HBM, of which {} have to leave, and elsewhere there is room for {}: "
                  "start another daemon first, ask for less, or give --force to move what fits and keep the rest "
                  "until there is room",
                  number(node.id), format_bytes(held), format_bytes(leaves), format_bytes(room)));
}

// Done only if the node's record is as it was read, so the order is under the node's lease.
template <class MakeCommit>
Result<bool> commit(RegistryClient& registry, NodeId node, const MakeCommit& make) {
  const std::string key = cluster::node_key(node);
  VMEM_ASSIGN(auto records, registry.read(key));
  const cluster::Read read{std::move(records)};
  const cluster::Record* const record = cluster::find_record(read, key);
  return record == nullptr ? Result<bool>(false) : registry.commit(make(*record));
}

Status changes_too_often(NodeId node) {
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("the record of node {} changes too often to be used", number(node)));
}

}  // namespace

RoomElsewhere room_elsewhere(const std::vector<ClusterNode>& nodes, NodeId node) {
  RoomElsewhere room;
  for (const ClusterNode& other : nodes) {
    if (other.id == node || other.drain) continue;
    room.pages += room_on(other);
    room.copies += left_of(other.record.lends.copies, other.holds.value_or(cluster::Holdings{}).copies);
  }
  return room;
}

Status check_room_for_drain(const std::vector<ClusterNode>& nodes, NodeId id) {
  VMEM_ASSIGN(const ClusterNode* const node, find_lender(nodes, id));
  const cluster::Holdings held = node->holds.value_or(cluster::Holdings{});
  const auto [pages, copies] = room_elsewhere(nodes, id);
  std::uint64_t lent = 0;
  for (const ClusterNode& other : nodes) {
    if (other.id == id || other.drain) continue;
    const cluster::NodeRecord::Lends& lends = other.record.lends;
    lent += lends.memory + lends.disk + stored_hbm(other);
  }
  if (node->record.stored_pages() != 0 && lent == 0)
    return refuse(
        fmt::format("node {} is the last one that lends: it holds {} of pages, and there is no other node "
                    "for them; start another daemon first, or give --force to have pages stay there until "
                    "one joins",
                    number(id), format_bytes(held.stored())));
  if (pages < held.stored())
    return refuse(
        fmt::format("node {} holds {} of pages, and the other nodes have room for {}: start another daemon "
                    "first, or give --force to move what fits and keep the rest until there is room",
                    number(id), format_bytes(held.stored()), format_bytes(pages)));
  if (copies < held.copies)
    return refuse(
        fmt::format("node {} holds {} of copies of published regions, and the other nodes have room for {}: "
                    "start another daemon with --copies first, or give --force",
                    number(id), format_bytes(held.copies), format_bytes(copies)));
  return {};
}

Status drain_node(RegistryClient& registry, NodeId node, const cluster::DrainOrder& order, RoomCheck check) {
  for (int i = 0; i < kTries; ++i) {
    VMEM_ASSIGN(const auto nodes, list_nodes(registry));
    VMEM_ASSIGN(const ClusterNode* const lender, find_lender(nodes, node));
    if (check == RoomCheck::required && !lender->drain) VMEM_TRY(check_room_for_drain(nodes, node));
    VMEM_ASSIGN(const bool done, commit(registry, node, [&](const cluster::Record& record) {
                  return cluster::drain_commit(record, order);
                }));
    if (done) return {};
  }
  return changes_too_often(node);
}

Status undrain_node(RegistryClient& registry, NodeId node) {
  for (int i = 0; i < kTries; ++i) {
    VMEM_ASSIGN(const auto nodes, list_nodes(registry));
    VMEM_ASSIGN(const ClusterNode* const lender, find_lender(nodes, node));
    if (!lender->drain) return refuse(fmt::format("node {} does not drain", number(node)));
    VMEM_ASSIGN(const bool done, commit(registry, node, [](const cluster::Record& record) {
                  return cluster::drain_commit(record, std::nullopt);
                }));
    if (done) return {};
  }
  return changes_too_often(node);
}

Status limit_hbm(RegistryClient& registry, NodeId node, std::uint64_t bytes, RoomCheck check) {
  for (int i = 0; i < kTries; ++i) {
    VMEM_ASSIGN(const auto nodes, list_nodes(registry));
    VMEM_ASSIGN(const ClusterNode* const lender, find_lender(nodes, node));
    const std::uint64_t most = lender->record.lends.hbm;
    if (most == 0)
      return refuse(
          fmt::format("node {} lends no HBM; its daemon has to be started with --hbm GPU:SIZE", number(node)));
    if (bytes > most)
      return refuse(
          fmt::format("{} of HBM asked for, and node {} was started with {}: ask for that at most, or start "
                      "its daemon anew with a larger --hbm",
                      format_bytes(bytes), number(node), format_bytes(most)));
    if (check == RoomCheck::required) VMEM_TRY(check_room_for_limit(nodes, *lender, bytes));
    const auto limit = bytes == most ? std::nullopt : std::optional(cluster::HbmLimit{bytes});
    VMEM_ASSIGN(const bool done, commit(registry, node, [&](const cluster::Record& record) {
                  return cluster::hbm_limit_commit(record, limit);
                }));
    if (done) return {};
  }
  return changes_too_often(node);
}

}  // namespace vmem::runtime
