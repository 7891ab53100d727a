#include "runtime/remote/cluster_trust.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <map>
#include <vector>

#include "runtime/cluster/node_list.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kReadUs = 10'000'000;
constexpr std::uint64_t kConnectUs = 2'000'000;
constexpr std::uint64_t kTurnUs = 1'000;
constexpr std::size_t kAsked = 3;  // daemons

struct NothingIsReceived final : rdma::Receiver {
  std::optional<rdma::Claim> claim(rdma::PeerId, rdma::ConstBytes, std::uint64_t) override { return std::nullopt; }
};

std::string words_of(const std::string& trust) {
  if (trust == "secret") return "a secret (option secret)";
  if (trust == "certificates") return "certificates (option certificates)";
  return "no secret, which is for one user of one machine";
}

std::string name_of(const ClusterNode& node) {
  return fmt::format("node {} of the cluster, a daemon at {},", static_cast<std::uint64_t>(node.id),
                     node.record.addresses.front());
}

Status refused(const ClusterNode& node, const rdma::Gone& gone) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{} and this daemon do not accept each other: {}; all nodes of a cluster have to trust each "
                          "other, so give this daemon that one's secrets or authority, or join another cluster",
                          name_of(node), gone.error.message));
}

// False: the peer has not said anything yet.
Result<bool> hear(const rdma::Event& event, const ClusterNode& node) {
  if (const auto* const gone = std::get_if<rdma::Gone>(&event.what)) {
    const bool nobody_listens = gone->error.native == ECONNREFUSED;
    if (gone->reason == rdma::Reason::refused && !nobody_listens) VMEM_TRY(refused(node, *gone));
    return true;
  }
  return std::holds_alternative<rdma::Connected>(event.what);
}

// Over a connection of an identity of its own, which shares no addresses with anybody.
Status connect_to(const NodeConfig& own, const std::vector<ClusterNode>& daemons) {
  SteadyClock clock;
  NothingIsReceived receiver;
  const NodeConfig visitor{.self = make_identity(0),
                           .listen = "",
                           .secret = own.secret,
                           .certificates = own.certificates,
                           .fabric = own.fabric};
  VMEM_ASSIGN(const auto transport, make_transport(visitor, clock, receiver));
  const std::uint64_t deadline_us = clock.now_us() + kConnectUs;
  std::map<rdma::PeerId, const ClusterNode*> asked;
  for (const ClusterNode& node : daemons) {
    const auto peer = transport->connect(node.record.addresses.front(), deadline_us);
    if (peer) asked.emplace(*peer, &node);
  }
  while (!asked.empty() && clock.now_us() < deadline_us) {
    const bool did = transport->progress();
    std::vector<rdma::Event> events;
    transport->poll(events);
    for (const rdma::Event& event : events) {
      const auto node = asked.find(event.peer);
      if (node == asked.end()) continue;
      VMEM_ASSIGN(const bool heard, hear(event, *node->second));
      if (heard) asked.erase(node);
    }
    if (!did && events.empty()) transport->idle(kTurnUs);
  }
  return {};
}

}  // namespace

std::string trust_of(const NodeConfig& node) {
  if (!node.secret.empty()) return "secret";
  return node.certificates.empty() ? "user" : "certificates";
}

Status check_trust(const NodeConfig& own, const RegistryAccess& registry) {
  const std::string trust = trust_of(own);
  const auto nodes = list_nodes(registry, kReadUs);
  if (!nodes) return fail(nodes.error().status, fmt::format("the cluster was not joined: {}", nodes.error().message));
  std::vector<ClusterNode> asked;
  for (const ClusterNode& node : *nodes) {
    if (node.record.kind != "daemon" || node.record.addresses.empty()) continue;
    if (!node.record.trust.empty() && node.record.trust != trust)
      return fail(VMEM_ERROR_INVALID_OPTION,
                  fmt::format("{} knows others by {}, and this one by {}: no node would reach both; start this daemon "
                              "like that one, or join another cluster",
                              name_of(node), words_of(node.record.trust), words_of(trust)));
    if (asked.size() < kAsked) asked.push_back(node);
  }
  return trust == "user" ? Status{} : connect_to(own, asked);
}

}  // namespace vmem::runtime
