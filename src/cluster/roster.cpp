#include "cluster/roster.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace vmem::cluster {
namespace {

constexpr std::size_t kNowhere = SIZE_MAX;

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }
std::uint64_t number(Incarnation incarnation) { return static_cast<std::uint64_t>(incarnation); }
std::uint64_t number(Epoch epoch) { return static_cast<std::uint64_t>(epoch); }

std::unexpected<Error> refuse(std::string why) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(why)); }

template <class Matches>
std::size_t index_of(const std::vector<Member>& members, Matches matches) {
  const auto found = std::ranges::find_if(members, matches);
  return found == members.end() ? kNowhere : static_cast<std::size_t>(found - members.begin());
}

// For each entry of the list, the index of the member that it names, each member at most once. Ids
// decide first: a node that moved leaves its address to another entry.
std::vector<std::size_t> matches_of(const std::vector<Peer>& listed, const std::vector<Member>& members) {
  std::vector<std::size_t> matches(listed.size(), kNowhere);
  for (std::size_t i = 0; i < listed.size(); ++i) {
    if (listed[i].id == NodeId{}) continue;
    matches[i] = index_of(members, [&](const Member& member) { return member.node.id == listed[i].id; });
  }
  const std::set<std::size_t> taken(matches.begin(), matches.end());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    if (matches[i] != kNowhere) continue;
    const std::size_t there =
        index_of(members, [&](const Member& member) { return member.address == listed[i].address; });
    if (there == kNowhere || taken.contains(there)) continue;
    if (listed[i].id == NodeId{} || members[there].node.id == NodeId{}) matches[i] = there;
  }
  return matches;
}

}  // namespace

std::string_view standing_name(Standing standing) noexcept {
  switch (standing) {
    case Standing::expected:
      return "expected";
    case Standing::member:
      return "member";
    case Standing::suspect:
      return "suspect";
  }
  return "unknown";
}

std::size_t Roster::find(NodeId node) const {
  return index_of(view_.members, [&](const Member& member) { return node != NodeId{} && member.node.id == node; });
}
std::size_t Roster::find(const std::string& address) const {
  return index_of(view_.members, [&](const Member& member) { return !address.empty() && member.address == address; });
}

std::size_t Roster::add(Member member, Record record) {
  view_.members.push_back(std::move(member));
  records_.push_back(record);
  return records_.size() - 1;
}

void Roster::say(Change::Kind kind, const Member& member) {
  changes_.push_back({kind, member.node, member.address, view_.epoch});
}

// The index of the node in the view; adds a node that joins unlisted.
Result<std::size_t> Roster::place_of(const std::string& address, NodeIdentity node) {
  if (node.id == NodeId{}) return refuse("a node without an id: ids begin with 1");
  if (node.id == view_.self.id)
    return refuse(fmt::format("node {} is this node: each node needs an id of its own", number(node.id)));
  const std::size_t by_id = find(node.id), by_address = find(address);
  if (by_address != kNowhere) {
    const Member& listed = view_.members[by_address];
    if (listed.node.id != NodeId{} && listed.node.id != node.id && !records_[by_address].any_id)
      return refuse(fmt::format("at {} is node {}, and node {} was expected there", address, number(node.id),
                                number(listed.node.id)));
    if (by_id != kNowhere && by_id != by_address)
      return refuse(fmt::format("{} and {} both have the id {}: each node needs an id of its own", address,
                                view_.members[by_id].address.empty() ? "another node" : view_.members[by_id].address,
                                number(node.id)));
    return by_address;
  }
  if (by_id != kNowhere) return by_id;
  if (!rules_.others_may_join) return refuse(fmt::format("node {} is not in the list of peers", number(node.id)));
  return add({.node = {node.id, {}}, .address = address}, {});
}

// Another node has the address now.
void Roster::replace(std::size_t place, NodeIdentity node) {
  Member& member = view_.members[place];
  say(Change::Kind::replaced, member);
  member.node = {node.id, {}};
  member.standing = Standing::expected;
}

Status Roster::heard(const std::string& address, NodeIdentity node) {
  VMEM_ASSIGN(const std::size_t place, place_of(address, node));
  Member& member = view_.members[place];
  if (member.standing != Standing::expected && member.node.id != node.id) replace(place, node);
  const bool is_new = member.standing == Standing::expected;
  if (!is_new && node.incarnation < member.node.incarnation)
    return refuse(fmt::format("incarnation {} of node {} is over: incarnation {} was heard of",
                              number(node.incarnation), number(node.id), number(member.node.incarnation)));
  const bool restarted = !is_new && node.incarnation > member.node.incarnation;
  const bool recovered = member.standing == Standing::suspect;
  member.node = node;
  member.standing = Standing::member;
  records_[place].missed = 0;
  if (is_new) say(Change::Kind::joined, member);
  if (restarted) say(Change::Kind::restarted, member);
  if (recovered && !restarted) say(Change::Kind::recovered, member);
  return {};
}

void Roster::missed(NodeId node) {
  const std::size_t place = find(node);
  if (place == kNowhere || view_.members[place].standing != Standing::member) return;
  if (++records_[place].missed < rules_.suspect_after) return;
  view_.members[place].standing = Standing::suspect;
  say(Change::Kind::suspected, view_.members[place]);
}

Status Roster::check_list(const std::vector<Peer>& listed) const {
  std::set<NodeId> ids;
  std::set<std::string> addresses;
  for (const Peer& peer : listed) {
    if (peer.id == view_.self.id && peer.id != NodeId{})
      return refuse(fmt::format("peers names node {}, which is this node", number(peer.id)));
    if (peer.id != NodeId{} && !ids.insert(peer.id).second)
      return refuse(fmt::format("peers names node {} twice", number(peer.id)));
    if (peer.id != NodeId{} && peer.address.empty()) continue;
    if (!addresses.insert(peer.address).second) return refuse(fmt::format("peers names {} twice", peer.address));
  }
  return {};
}

Status Roster::advance(Epoch epoch, const std::vector<Peer>& listed, const std::vector<NodeId>& evicted) {
  if (epoch <= view_.epoch)
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("epoch {} does not follow epoch {}", number(epoch), number(view_.epoch)));
  VMEM_TRY(check_list(listed));
  view_.epoch = epoch;
  const std::vector<Member> before = std::exchange(view_.members, {});
  const std::vector<Record> records = std::exchange(records_, {});
  const std::vector<std::size_t> matches = matches_of(listed, before);
  const std::set<std::size_t> kept(matches.begin(), matches.end());
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const Peer& peer = listed[i];
    const std::size_t was = matches[i];
    Member member{.node = {peer.id, {}}, .address = peer.address};
    if (was != kNowhere) {
      member = before[was];
      member.address = peer.address;
      if (member.node.id == NodeId{}) member.node.id = peer.id;
    }
    const std::uint32_t missed = was == kNowhere ? 0 : records[was].missed;
    add(std::move(member), {.listed = true, .any_id = peer.id == NodeId{}, .missed = missed});
  }
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (kept.contains(i)) continue;
    const bool out = records[i].listed || std::ranges::find(evicted, before[i].node.id) != evicted.end();
    if (!out) add(before[i], {.missed = records[i].missed});
    if (out && before[i].standing != Standing::expected) say(Change::Kind::evicted, before[i]);
  }
  return {};
}

void Roster::take(std::vector<Change>& changes) {
  std::ranges::move(changes_, std::back_inserter(changes));
  changes_.clear();
}

}  // namespace vmem::cluster
