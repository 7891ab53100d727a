#include "runtime/nodes.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>

#include "pagetable/types.hpp"
#include "rdma/socket_address.hpp"

namespace vmem::runtime {
namespace {

static_assert(kMostRemoteChannels == rdma::kMostChannels);

bool has_rdma_card() {
  std::error_code none;
  return std::filesystem::directory_iterator("/sys/class/infiniband", none) != std::filesystem::directory_iterator();
}

}  // namespace

NodeIdentity make_identity(std::uint32_t id) {
  std::random_device random;
  while (id == 0) id = random();
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  return {NodeId{id}, Incarnation{static_cast<std::uint64_t>(us)}};
}

Result<rdma::UcxConfig> make_ucx_config(NodeIdentity self, const std::string& secret, const Clock& clock) {
  rdma::UcxConfig config;
  config.self = self;
  config.parameters.page_bytes = pagetable::kGranuleBytes;
  config.clock = &clock;
  // Not through shared memory: after some kills of processes that wrote there, others could not be reached through it any more.
  config.settings = {{"TLS", "^sm"}};
  // Over TCP, messages are copied by UCX instead of sent from where they lie: where the other node dies while one is being sent, UCX 1.13
  // tells its end twice, and aborts (2 of 600 kills; copied, none). RDMA cards need what TCP is better without.
  if (!has_rdma_card()) config.settings.emplace_back("ZCOPY_THRESH", "inf");
  if (!secret.empty()) {
    VMEM_ASSIGN(const rdma::CryptoRef crypto, rdma::Crypto::load());
    VMEM_ASSIGN(config.secret, rdma::Secret::read(*crypto, secret));
  }
  return config;
}

// On few processors, threads of their own would only take turns with the others.
std::uint32_t channel_count(std::optional<std::uint32_t> asked) {
  return asked.value_or(std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
}

Result<std::string> resolve_address(const std::string& address) {
  VMEM_ASSIGN(const rdma::SocketAddress resolved, rdma::SocketAddress::resolve(address));
  return resolved.text();
}

}  // namespace vmem::runtime
