#include "rdma/node/peer_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace vmem::rdma {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

}  // namespace

const Peer* PeerBook::connected(PeerId peer, const Connected& connected,
                                const std::function<Status(const Connected&)>& admit) {
  if (!connected.by_us) {
    if (is_anothers(connected.node.id, connected.identity))
      return refuse(peer, connected, {VMEM_ERROR_INVALID_OPTION, 0, "another tenant is connected under this id"});
    if (const Status admitted = admit(connected); !admitted) return refuse(peer, connected, admitted.error());
    if (!take_place(connected)) {
      ++rejected_;
      transport_.close(peer);
      return nullptr;
    }
    if (const auto times = came_.next(); times.logged)
      VMEM_LOG_INFO("node {} connected, by {} ({} connections so far)", number(connected.node.id), connected.path,
                    times.count);
  }
  Entry& entry = peers_[peer];
  entry.peer = {.id = peer,
                .node = connected.node,
                .tenant = connected.identity,
                .path = connected.path,
                .process = connected.process,
                .by_us = connected.by_us,
                .channels = connected.channels,
                .version = connected.version,
                .takes_gpu_memory = connected.takes_gpu_memory};
  entry.heard_us = clock_.now_us();
  return &entry.peer;
}

// Closes the node's earlier connections. False: one of a later incarnation exists.
bool PeerBook::take_place(const Connected& connected) {
  for (const auto& [other, entry] : peers_) {
    const NodeIdentity there = entry.peer.node;
    if (!entry.peer.by_us && there.id == connected.node.id && connected.node.incarnation < there.incarnation)
      return false;
  }
  for (auto& [other, entry] : peers_) {
    if (!entry.peer.by_us && entry.peer.node.id == connected.node.id) close(entry);
  }
  return true;
}

const Peer* PeerBook::refuse(PeerId peer, const Connected& connected, const Error& why) {
  ++rejected_;
  if (const auto times = refused_.next(); times.logged)
    VMEM_LOG_WARN("node {} ('{}') is refused: {} ({} refusals so far)", number(connected.node.id), connected.identity,
                  why.message, times.count);
  transport_.close(peer);
  return nullptr;
}

std::optional<Peer> PeerBook::gone(PeerId peer, const Gone& gone) {
  auto entry = peers_.extract(peer);
  if (entry.empty()) return std::nullopt;
  Peer was = std::move(entry.mapped().peer);
  if (was.by_us) return was;
  if (const auto times = went_.next(); times.logged)
    VMEM_LOG_INFO("node {} is gone: {} ({} so far)", number(was.node.id), gone.error.message, times.count);
  return was;
}

const Peer* PeerBook::find(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second.peer;
}

const Peer* PeerBook::find(NodeIdentity node) const {
  const Entry* best = nullptr;
  for (const auto& [id, entry] : peers_) {
    if (entry.closing || entry.peer.node != node) continue;
    if (best == nullptr || entry.heard_us > best->heard_us) best = &entry;
  }
  return best == nullptr ? nullptr : &best->peer;
}

std::uint16_t PeerBook::version(PeerId peer) const {
  const Peer* const known = find(peer);
  return known == nullptr ? kProtocolVersion : known->version;
}

bool PeerBook::takes_gpu_memory(PeerId peer) const {
  const Peer* const known = find(peer);
  return known != nullptr && known->takes_gpu_memory;
}

bool PeerBook::is_from(const Peer& peer, const wire::Header& header) {
  const bool own =
      header.request.client == number(peer.node.id) &&
      static_cast<std::uint64_t>(header.request.epoch) == static_cast<std::uint64_t>(peer.node.incarnation);
  if (own) heard(peer.id);
  rejected_ += own ? 0 : 1;
  return own;
}

void PeerBook::heard(PeerId peer) {
  if (const auto found = peers_.find(peer); found != peers_.end()) found->second.heard_us = clock_.now_us();
}

bool PeerBook::was_heard(PeerId peer, std::uint64_t within_us) const {
  const auto found = peers_.find(peer);
  return found != peers_.end() && clock_.now_us() - found->second.heard_us < within_us;
}

bool PeerBook::has(NodeId node) const {
  return std::ranges::any_of(peers_, [&](const auto& each) { return each.second.peer.node.id == node; });
}

bool PeerBook::is_anothers(NodeId node, const std::string& tenant) const {
  return std::ranges::any_of(peers_, [&](const auto& each) {
    const Peer& peer = each.second.peer;
    return !peer.by_us && peer.node.id == node && peer.tenant != tenant;
  });
}

bool PeerBook::has_incoming() const {
  return std::ranges::any_of(peers_, [](const auto& each) { return !each.second.peer.by_us; });
}

void PeerBook::close(PeerId peer) {
  if (const auto found = peers_.find(peer); found != peers_.end()) close(found->second);
}

void PeerBook::close_node(NodeIdentity node) {
  for (auto& [peer, entry] : peers_) {
    if (entry.peer.node == node) close(entry);
  }
}

void PeerBook::close_incoming() {
  for (auto& [peer, entry] : peers_) {
    if (!entry.peer.by_us) close(entry);
  }
}

void PeerBook::close_silent() {
  const std::uint64_t now = clock_.now_us();
  for (auto& [peer, entry] : peers_) {
    if (!entry.peer.by_us && now - entry.heard_us > silence_us_) close(entry);
  }
}

// Closes only once: the peer stays until its Gone.
void PeerBook::close(Entry& entry) {
  if (!std::exchange(entry.closing, true)) transport_.close(entry.peer.id);
}

}  // namespace vmem::rdma
