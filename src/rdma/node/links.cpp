#include "rdma/node/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/sizes.hpp"

namespace vmem::rdma {

LinkId Links::add(std::vector<std::string> addresses, LinkUser& user) {
  last_ = LinkId{static_cast<std::uint32_t>(last_) + 1};
  Link& link = links_[last_];
  link.id = last_;
  link.addresses = std::move(addresses);
  link.user = &user;
  return last_;
}

// A connection's memory is in use until it is gone, and so the link stays until then.
void Links::remove(LinkId link) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  Link& removed = found->second;
  if (removed.peer == PeerId{}) {
    links_.erase(found);
    return;
  }
  removed.state = Link::State::removed;
  if (!std::exchange(removed.closing, true)) transport_.close(removed.peer);
}

bool Links::is_up(LinkId link) const {
  const auto found = links_.find(link);
  return found != links_.end() && found->second.state == Link::State::up && !found->second.closing;
}

PeerId Links::peer(LinkId link) const {
  const auto found = links_.find(link);
  return found == links_.end() ? PeerId{} : found->second.peer;
}

Links::Link* Links::find(PeerId peer) {
  const auto found = std::ranges::find_if(links_, [&](const auto& each) { return each.second.peer == peer; });
  return peer == PeerId{} || found == links_.end() ? nullptr : &found->second;
}

bool Links::keep_up() {
  bool did = false;
  const std::uint64_t now = clock_.now_us();
  for (auto each = links_.begin(); each != links_.end();) {
    Link& link = (each++)->second;  // its user may remove it
    if (link.state == Link::State::up && !link.closing) pings_.send_if_quiet(link.peer, times_.ping_us);
    if (link.state != Link::State::away || now < link.again_us) continue;
    did = true;
    connect(link);
  }
  return did;
}

void Links::connect(Link& link) {
  link.closing = link.late = false;
  link.why.clear();
  const auto peer = transport_.connect(link.addresses[link.next], clock_.now_us() + times_.connect_us);
  if (!peer)
    return failed(link, {.reason = Reason::refused, .native = peer.error().native, .why = peer.error().message});
  link.peer = *peer;
  link.state = Link::State::connecting;
}

void Links::close(LinkId link, std::string why, std::uint64_t rest_us) {
  const auto found = links_.find(link);
  if (found == links_.end()) return;
  Link& closed = found->second;
  if (closed.peer == PeerId{} || std::exchange(closed.closing, true)) return;
  closed.why = std::move(why);
  closed.rest_us = rest_us;
  transport_.close(closed.peer);
}

bool Links::connected(PeerId peer, const Connected& connected) {
  Link* const link = find(peer);
  if (link == nullptr) return false;
  if (link->state != Link::State::connecting || link->closing) return true;
  link->state = Link::State::up;
  link->up_us = clock_.now_us();
  const LinkId id = link->id;
  if (const Status used = link->user->up(id, connected); !used) close(id, used.error().message);
  return true;
}

bool Links::late(PeerId peer) {
  Link* const link = find(peer);
  if (link == nullptr) return false;
  if (!link->closing) link->late = true;
  close(link->id, fmt::format("it did not answer within {}", exact_duration_us(times_.request_us)));
  return true;
}

bool Links::gone(PeerId peer, const Gone& gone) {
  Link* const link = find(peer);
  if (link == nullptr) return false;
  link->peer = {};
  if (link->state == Link::State::removed) {
    links_.erase(link->id);
    return true;
  }
  LinkDown down{.was_up = link->state == Link::State::up,
                .reason = link->late ? Reason::timeout : gone.reason,
                .native = gone.error.native,
                .why = {}};
  down.why = gone.reason == Reason::closed && !link->why.empty() ? link->why : gone.error.message;
  failed(*link, down);
  return true;
}

void Links::failed(Link& link, const LinkDown& down) {
  link.state = Link::State::away;
  link.again_us = clock_.now_us() + rest(link, down);
  link.user->down(link.id, down);  // may remove the link
}

// A link that was up for a while is made again at once: by the first address, or by the next one if
// the node was silent, which an attempt would find out only after its deadline. Another address is
// tried at once, too, until all were.
std::uint64_t Links::rest(Link& link, const LinkDown& down) {
  const std::uint64_t least = std::exchange(link.rest_us, 0);
  const bool lasted = down.was_up && clock_.now_us() - link.up_us >= times_.reconnect_us;
  if (down.was_up && down.reason != Reason::timeout) {
    link.next = 0;
  } else {
    link.next = (link.next + 1) % link.addresses.size();
    if (link.next != 0) return least;
  }
  return lasted ? least : std::max(times_.reconnect_us, least);
}

}  // namespace vmem::rdma
