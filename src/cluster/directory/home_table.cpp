#include "cluster/directory/home_table.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

namespace vmem::cluster::directory {

std::vector<std::uint32_t> HomeTable::sync(const RegionRecord& record) {
  std::vector<std::uint32_t> changed;
  all_ = daemons_ = 0;
  for (std::uint32_t place = 0; place < kMostParticipants; ++place) {
    const RegionRecord::Participant& who = record.participants[place];
    if (entries_[place].who != who) {
      entries_[place] = {.who = who, .leave_by_us = 0, .left = false, .lost = {}, .assigned = 0};
      left_ &= ~place_bit(place);
      changed.push_back(place);
    }
    if (who.node == NodeId{}) continue;
    all_ |= place_bit(place);
    if (who.daemon) daemons_ |= place_bit(place);
  }
  return changed;
}

std::optional<std::uint32_t> HomeTable::place_of(NodeId node) const {
  std::optional<std::uint32_t> found;
  for_each_place(all_, [&](std::uint32_t place) {
    if (entries_[place].who.node == node) found = place;
  });
  return found;
}

std::optional<std::uint32_t> HomeTable::find(NodeId node, Session session) const {
  const std::optional<std::uint32_t> place = place_of(node);
  return place && entries_[*place].who.session == session ? place : std::nullopt;
}

Places HomeTable::going(const NodesView& view) const {
  Places going = 0;
  for_each_place(all_, [&](std::uint32_t place) {
    const Entry& entry = entries_[place];
    const KnownNode* const node = view.find(entry.who.node);
    if (entry.leave_by_us != 0 || (node != nullptr && node->draining)) going |= place_bit(place);
  });
  return going;
}

Places HomeTable::forced(const NodesView& view) const {
  Places forced = 0;
  for_each_place(all_, [&](std::uint32_t place) {
    const KnownNode* const node = view.find(entries_[place].who.node);
    if (node != nullptr && node->forced) forced |= place_bit(place);
  });
  return forced;
}

Places HomeTable::over(const NodesView& view, Revision since, NodeId self) const {
  Places over = 0;
  for_each_place(all_, [&](std::uint32_t place) {
    const NodeId node = entries_[place].who.node;
    if (node != self && view.over(node, since)) over |= place_bit(place);
  });
  return over;
}

void HomeTable::let_go(std::uint32_t place, Runs lost) {
  entries_[place].left = true;
  entries_[place].lost = std::move(lost);
  left_ |= place_bit(place);
}

const KnownNode* choose_daemon(const NodesView& view, const HomeTable& table, const PlacementWish& wish) {
  const auto taken = [&](const std::string KnownNode::* label, const KnownNode& node) {
    return std::ranges::any_of(wish.keepers, [&](NodeId keeper) {
      const KnownNode* const known = view.find(keeper);
      return known != nullptr && !(known->*label).empty() && known->*label == node.*label;
    });
  };
  const KnownNode* best = nullptr;
  std::tuple<bool, bool, std::uint64_t> best_rank;
  for (const KnownNode& node : view.nodes) {
    const bool excluded = std::ranges::find(wish.keepers, node.id) != wish.keepers.end() ||
                          std::ranges::find(wish.excluded, node.id) != wish.excluded.end();
    const std::optional<std::uint32_t> place = table.place_of(node.id);
    const std::uint64_t assigned = place ? table[*place].assigned * wish.page_bytes : 0;
    if (!node.daemon || node.draining || excluded || node.free_bytes < wish.page_bytes) continue;
    if (place ? table[*place].leave_by_us != 0 : wish.participants_only) continue;
    const std::uint64_t room = node.free_bytes > assigned ? node.free_bytes - assigned : 0;
    const std::tuple rank{!taken(&KnownNode::rack, node), !taken(&KnownNode::host, node), room};
    if (best != nullptr && rank <= best_rank) continue;
    best = &node;
    best_rank = rank;
  }
  return best;
}

bool no_daemon_takes_copies(const NodesView& view, const RegionRecord& record) {
  bool daemons = false;
  for (const KnownNode& node : view.nodes) {
    if (node.id == record.publisher) continue;
    if (node.daemon && node.free_bytes >= record.page_bytes) return false;
    daemons |= node.daemon || node.without_copies;
  }
  return daemons;
}

}  // namespace vmem::cluster::directory
