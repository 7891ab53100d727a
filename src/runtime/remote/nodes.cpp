#include "runtime/remote/nodes.hpp"

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>
#include <utility>

#include "pagetable/types.hpp"
#include "rdma/remote_options.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/transport/ucx/ucx.hpp"

namespace vmem::runtime {
namespace {

static_assert(kMostRemoteChannels == rdma::kMostChannels && kMostRemoteChannels == rdma::kMostStreamChannels);

// Lending nodes agree on pages of one granule; they share no addresses yet.
constexpr rdma::ClusterParameters kParameters{.page_bytes = pagetable::kGranuleBytes};

Result<std::unique_ptr<rdma::Transport>> make_ucx_transport(const NodeConfig& config, rdma::KeyringRef keyring,
                                                            rdma::CertificatesRef certificates, const Clock& clock,
                                                            rdma::Receiver& receiver) {
  return rdma::create_ucx_transport({.self = config.self,
                                     .parameters = kParameters,
                                     .listen = config.listen,
                                     .keyring = std::move(keyring),
                                     .certificates = std::move(certificates),
                                     .clock = &clock,
                                     .receiver = &receiver,
                                     .channels = config.channels,
                                     .settings = fabric_settings(config.fabric)});
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fabric_settings(const std::string& devices) {
  return {{"TLS", "ib"}, {"NET_DEVICES", devices}};
}

NodeIdentity make_identity(std::uint32_t id) {
  std::random_device random;
  while (id == 0) id = random();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return {NodeId{id}, Incarnation{static_cast<std::uint64_t>(us)}};
}

Result<std::unique_ptr<rdma::Transport>> make_transport(const NodeConfig& config, const Clock& clock,
                                                        rdma::Receiver& receiver) {
  rdma::KeyringRef keyring;
  if (!config.secret.empty()) {
    VMEM_ASSIGN(keyring, rdma::Keyring::open(config.secret));
  }
  rdma::CertificatesRef certificates;
  if (!config.certificates.empty()) {
    VMEM_ASSIGN(certificates, rdma::Certificates::open(config.certificates));
  }
  if (!config.fabric.empty())
    return make_ucx_transport(config, std::move(keyring), std::move(certificates), clock, receiver);
  return rdma::create_stream_transport({.self = config.self,
                                        .parameters = kParameters,
                                        .listen = config.listen,
                                        .keyring = std::move(keyring),
                                        .certificates = std::move(certificates),
                                        .clock = &clock,
                                        .receiver = &receiver,
                                        .channels = config.channels});
}

// With few processors, extra channel threads would only compete with the others.
std::uint32_t channel_count(std::optional<std::uint32_t> asked) {
  return asked.value_or(std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
}

Result<std::string> resolve_address(const std::string& address) {
  VMEM_ASSIGN(const rdma::SocketAddress resolved, rdma::SocketAddress::resolve(address));
  return resolved.text();
}

}  // namespace vmem::runtime
