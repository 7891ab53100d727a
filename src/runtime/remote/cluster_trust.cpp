#include "runtime/remote/cluster_trust.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <vector>

#include "runtime/cluster/node_list.hpp"
#include "runtime/remote/visit.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kReadUs = 10'000'000;
constexpr std::uint64_t kConnectUs = 2'000'000;
constexpr std::size_t kAsked = 3;  // daemons

std::string words_of(const std::string& trust) {
  if (trust == "secret") return "with a secret (option secret)";
  if (trust == "certificates") return "with certificates (option certificates)";
  return "without secret and certificates";
}

std::string name_of(const ClusterNode& node) {
  return fmt::format("node {} of the cluster, a daemon at {},", static_cast<std::uint64_t>(node.id),
                     node.record.addresses.front());
}

Status refused(const ClusterNode& node, const rdma::Gone& gone) {
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("{} and this daemon do not accept each other: {}; start this daemon with the secret, or with "
                          "certificates of the authority, that the cluster's other nodes have, or join another cluster",
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

Status connect_to(const NodeConfig& own, const std::vector<ClusterNode>& daemons) {
  const NodeConfig visitor{.self = make_identity(0),
                           .listen = "",
                           .secret = own.secret,
                           .certificates = own.certificates,
                           .fabric = own.fabric};
  std::vector<std::string> addresses;
  for (const ClusterNode& node : daemons) addresses.push_back(node.record.addresses.front());
  const auto hear_one = [&](rdma::Transport&, const rdma::Event& event, std::size_t at) {
    return hear(event, daemons[at]);
  };
  VMEM_TRY(visit(visitor, addresses, kConnectUs, hear_one));
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
                  fmt::format("{} runs {}, and this one {}: no node would reach both; start this daemon like that one, "
                              "or join another cluster",
                              name_of(node), words_of(node.record.trust), words_of(trust)));
    if (asked.size() < kAsked) asked.push_back(node);
  }
  return trust == "user" ? Status{} : connect_to(own, asked);
}

}  // namespace vmem::runtime
