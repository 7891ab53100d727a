#include "runtime/cluster/node_drain.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/counted.hpp"
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

// What other nodes that drain still hold needs room as well.
RoomElsewhere claimed_by_drains(const std::vector<ClusterNode>& nodes, NodeId node) {
  RoomElsewhere claimed;
  for (const ClusterNode& other : nodes) {
    if (other.id == node || !other.drain) continue;
    const cluster::Holdings holds = other.holds.value_or(cluster::Holdings{});
    claimed.pages += holds.stored();
    claimed.copies += holds.copies;
  }
  return claimed;
}

// Pages go to other nodes, and to memory and disks of the same one. What is mapped has room in its
// programs' host memory.
Status check_room_for_limit(const std::vector<ClusterNode>& nodes, const ClusterNode& node, std::uint64_t bytes) {
  const std::uint64_t held = node.holds.value_or(cluster::Holdings{}).stored_hbm();
  const std::uint64_t leaves = left_of(held, stored_hbm(node, cluster::HbmLimit{bytes}));
  std::uint64_t room = room_on(node) - left_of(stored_hbm(node), held);
  for (const ClusterNode& other : nodes) room += other.id == node.id || other.drain ? 0 : room_on(other);
  room = left_of(room, claimed_by_drains(nodes, node.id).pages);
  if (leaves <= room) return {};
  return refuse(
      fmt::format("node {} holds {} of pages in HBM, of which {} have to leave, and elsewhere there is room for {}: "
                  "start another daemon first, ask for less, or give --force to move what fits and keep the rest "
                  "until there is room",
                  number(node.id), format_bytes(held), format_bytes(leaves), format_bytes(room)));
}

// What an order is decided by.
struct Figures {
  cluster::Revision orders{};  // of kOrdersKey, read before the rest
  std::vector<ClusterNode> nodes;
  std::vector<ListedRegion> regions;
};

Result<Figures> look(RegistryClient& registry) {
  Figures figures;
  const std::string key(cluster::kOrdersKey);
  VMEM_ASSIGN(auto records, registry.read(key));
  const cluster::Read read{std::move(records)};
  if (const cluster::Record* const orders = cluster::find_record(read, key)) figures.orders = orders->modified;
  VMEM_ASSIGN(figures.nodes, list_nodes(registry));
  VMEM_ASSIGN(figures.regions, list_regions(registry));
  return figures;
}

// Whether each node that was there has said since then what it holds.
bool all_said_anew(const std::vector<ClusterNode>& first, const std::vector<ClusterNode>& now) {
  return std::ranges::all_of(first, [&](const ClusterNode& node) {
    const auto found = std::ranges::find(now, node.id, &ClusterNode::id);
    return !node.holds || found == now.end() || found->holds_at != node.holds_at;
  });
}

// Done only if the node's record is as it was read, so the order is under the node's lease, and if
// no other order came since the figures were read: two nodes might count each other's room.
template <class MakeCommit>
Result<bool> commit(RegistryClient& registry, NodeId node, cluster::Revision orders, const MakeCommit& make) {
  const std::string key = cluster::node_key(node), orders_key(cluster::kOrdersKey);
  VMEM_ASSIGN(auto records, registry.read(key));
  const cluster::Read read{std::move(records)};
  const cluster::Record* const record = cluster::find_record(read, key);
  if (record == nullptr) return false;
  cluster::Commit order = make(*record);
  order.conditions.push_back({.key = orders_key, .modified = orders});
  order.edits.push_back({.key = orders_key, .value = "{}", .lease = {}});
  return registry.commit(std::move(order));
}

std::unexpected<Error> changes_too_often(NodeId node) {
  return fail(VMEM_ERROR_TIMEOUT, fmt::format("the record of node {} changes too often to be used", number(node)));
}

struct Order {
  std::function<Status(const ClusterNode&)> allowed;
  std::function<Status(const Figures&, const ClusterNode&)> has_room;
  std::function<cluster::Commit(const cluster::Record&)> commit;
};

// Returns the node as it was.
Result<ClusterNode> put(RegistryClient& registry, NodeId node, const Order& order, const AwaitFigures& await) {
  std::optional<std::vector<ClusterNode>> first;
  for (int tries = 0; tries < kTries;) {
    VMEM_ASSIGN(const Figures figures, look(registry));
    VMEM_ASSIGN(const ClusterNode* const lender, find_lender(figures.nodes, node));
    VMEM_TRY(order.allowed(*lender));
    if (const Status room = order.has_room(figures, *lender); !room) {
      if (!first) first = figures.nodes;
      if (!await || all_said_anew(*first, figures.nodes) || !await()) return std::unexpected(room.error());
      continue;
    }
    VMEM_ASSIGN(const bool done, commit(registry, node, figures.orders, order.commit));
    if (done) return *lender;
    ++tries;
  }
  return changes_too_often(node);
}

std::uint64_t limit_of(const ClusterNode& node) {
  return node.hbm_limit ? node.hbm_limit->bytes : node.record.lends.hbm;
}

Status check_limit(const ClusterNode& node, std::uint64_t bytes) {
  const std::uint64_t most = node.record.lends.hbm;
  if (most == 0)
    return refuse(
        fmt::format("node {} lends no HBM; its daemon has to be started with --hbm GPU:SIZE", number(node.id)));
  if (bytes <= most) return {};
  return refuse(
      fmt::format("{} of HBM asked for, and node {} was started with {}: ask for that at most, or start "
                  "its daemon anew with a larger --hbm",
                  format_bytes(bytes), number(node.id), format_bytes(most)));
}

// Whether the daemon has a copy of each page of the region, or room for a page.
bool takes_copies(const ClusterNode& daemon, const cluster::directory::RegionRecord& region) {
  if (daemon.drain || daemon.id == region.publisher) return false;
  if (region.place_of(daemon.id)) return daemon.record.lends.copies != 0;
  const std::uint64_t held = daemon.holds.value_or(cluster::Holdings{}).copies;
  return left_of(daemon.record.lends.copies, held) >= region.page_bytes;
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

std::string CopiesWithoutRoom::words() const {
  return fmt::format("the published region '{}' is to have {}, each on a daemon of its own, and {} could have one",
                     region, counted(wanted, "copy", "copies"), counted(takers, "other daemon", "other daemons"));
}

std::optional<CopiesWithoutRoom> copies_without_room(const std::vector<ClusterNode>& nodes,
                                                     const std::vector<ListedRegion>& regions, const ClusterNode& node,
                                                     bool forced) {
  for (const auto& [region, members, home_is_member] : regions) {
    const std::optional<std::uint32_t> place = region.place_of(node.id);
    if (region.removed || !place || !region.participants[*place].daemon || region.publisher == node.id) continue;
    const std::uint32_t wanted = forced ? 1 : std::max(region.copies, 1u);
    const auto takers = std::uint32_t(std::ranges::count_if(
        nodes, [&](const ClusterNode& other) { return other.id != node.id && takes_copies(other, region); }));
    if (takers < wanted) return CopiesWithoutRoom{.region = region.name, .wanted = wanted, .takers = takers};
  }
  return std::nullopt;
}

Status check_room_for_drain(const std::vector<ClusterNode>& nodes, const std::vector<ListedRegion>& regions,
                            NodeId id) {
  VMEM_ASSIGN(const ClusterNode* const node, find_lender(nodes, id));
  const cluster::Holdings held = node->holds.value_or(cluster::Holdings{});
  const RoomElsewhere room = room_elsewhere(nodes, id), claimed = claimed_by_drains(nodes, id);
  const std::uint64_t pages = left_of(room.pages, claimed.pages), copies = left_of(room.copies, claimed.copies);
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
  if (const auto lacks = copies_without_room(nodes, regions, *node, false))
    return refuse(
        fmt::format("node {} has copies of published regions, and {}: start another daemon with --copies first, or "
                    "give --force to have fewer copies",
                    number(id), lacks->words()));
  return {};
}

Status drain_node(RegistryClient& registry, NodeId node, const cluster::DrainOrder& order, RoomCheck check,
                  const AwaitFigures& await) {
  const Order put_order{.allowed = [](const ClusterNode&) { return Status{}; },
                        .has_room =
                            [&](const Figures& figures, const ClusterNode& lender) {
                              if (check == RoomCheck::skipped || lender.drain) return Status{};
                              return check_room_for_drain(figures.nodes, figures.regions, node);
                            },
                        .commit = [&](const cluster::Record& record) { return cluster::drain_commit(record, order); }};
  VMEM_ASSIGN(const ClusterNode before, put(registry, node, put_order, await));
  return {};
}

Status undrain_node(RegistryClient& registry, NodeId node) {
  const Order order{
      .allowed = [](const ClusterNode& lender) -> Status {
        return lender.drain ? Status{} : refuse(fmt::format("node {} does not drain", number(lender.id)));
      },
      .has_room = [](const Figures&, const ClusterNode&) { return Status{}; },
      .commit = [](const cluster::Record& record) { return cluster::drain_commit(record, std::nullopt); }};
  VMEM_ASSIGN(const ClusterNode before, put(registry, node, order, {}));
  return {};
}

Result<bool> limit_hbm(RegistryClient& registry, NodeId node, std::uint64_t bytes, RoomCheck check,
                       const AwaitFigures& await) {
  std::uint64_t most = 0;
  const Order order{.allowed =
                        [&](const ClusterNode& lender) {
                          most = lender.record.lends.hbm;
                          return check_limit(lender, bytes);
                        },
                    .has_room =
                        [&](const Figures& figures, const ClusterNode& lender) {
                          return check == RoomCheck::skipped ? Status{}
                                                             : check_room_for_limit(figures.nodes, lender, bytes);
                        },
                    .commit =
                        [&](const cluster::Record& record) {
                          return cluster::hbm_limit_commit(
                              record, bytes == most ? std::nullopt : std::optional(cluster::HbmLimit{bytes}));
                        }};
  VMEM_ASSIGN(const ClusterNode before, put(registry, node, order, await));
  return bytes < limit_of(before) || bytes < before.holds.value_or(cluster::Holdings{}).hbm_taken;
}

}  // namespace vmem::runtime
