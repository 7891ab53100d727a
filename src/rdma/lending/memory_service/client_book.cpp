#include "rdma/lending/memory_service/client_book.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace vmem::rdma {
namespace {

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

}  // namespace

void ClientBook::connected(PeerId peer, const Connected& connected) {
  const NodeIdentity node = connected.node;
  // Under another's id, a tenant could end that node's lease.
  if (const LeaseRef lease = parts_.leases.find(node.id); lease && lease->tenant != connected.identity)
    return refuse(peer, connected);
  for (auto& [other, client] : clients_) {
    if (client.node.id != node.id) continue;
    if (client.tenant != connected.identity) return refuse(peer, connected);
    if (node.incarnation < client.node.incarnation) {
      ++parts_.statistics.rejected;
      return parts_.transport.close(peer);
    }
    close(other, client);
  }
  if (parts_.dead.ended(node)) return parts_.transport.close(peer);
  clients_[peer] = {
      .node = node, .tenant = connected.identity, .heard_us = config_.clock->now_us(), .process = connected.process};
  if (const auto times = came_.next(); times.logged)
    VMEM_LOG_INFO("node {} connected, by {} ({} connections so far)", number(node.id), connected.path, times.count);
}

void ClientBook::refuse(PeerId peer, const Connected& connected) {
  ++parts_.statistics.rejected;
  if (const auto times = refused_.next(); times.logged)
    VMEM_LOG_WARN("'{}' connected as node {}, which is another's id: refused ({} so far)", connected.identity,
                  number(connected.node.id), times.count);
  parts_.transport.close(peer);
}

void ClientBook::gone(PeerId peer, const Gone& gone) {
  const auto client = clients_.extract(peer);
  if (client.empty()) return;
  const NodeId id = client.mapped().node.id;
  if (const auto times = went_.next(); times.logged)
    VMEM_LOG_INFO("node {} is gone: {} ({} so far)", number(id), gone.error.message, times.count);
  const bool is_there = std::ranges::any_of(clients_, [&](const auto& each) { return each.second.node.id == id; });
  // Without a lease, nothing is kept for a node that is gone.
  if (!parts_.leases.find(id) && !is_there) parts_.replies.forget(id);
  parts_.leases.disconnected(id, peer);
}

bool ClientBook::is_from(PeerId peer, const wire::Header& header) {
  const auto found = clients_.find(peer);
  const bool own =
      found != clients_.end() && header.request.client == number(found->second.node.id) &&
      static_cast<std::uint64_t>(header.request.epoch) == static_cast<std::uint64_t>(found->second.node.incarnation);
  if (own) found->second.heard_us = config_.clock->now_us();
  parts_.statistics.rejected += own ? 0 : 1;
  return own;
}

bool ClientBook::is_anothers(NodeId node, const std::string& tenant) const {
  const LeaseRef lease = parts_.leases.find(node);
  return (lease && lease->tenant != tenant) || std::ranges::any_of(clients_, [&](const auto& each) {
           return each.second.node.id == node && each.second.tenant != tenant;
         });
}

void ClientBook::close_all() {
  for (auto& [peer, client] : clients_) close(peer, client);
}

void ClientBook::close_node(NodeIdentity node) {
  for (auto& [peer, client] : clients_) {
    if (client.node == node) close(peer, client);
  }
}

void ClientBook::close_silent() {
  const std::uint64_t now = config_.clock->now_us();
  for (auto& [peer, client] : clients_) {
    if (now - client.heard_us > config_.silence_us) close(peer, client);
  }
}

// Closes only once: the client stays until its Gone.
void ClientBook::close(PeerId peer, Client& client) {
  if (!std::exchange(client.closing, true)) parts_.transport.close(peer);
}

}  // namespace vmem::rdma
