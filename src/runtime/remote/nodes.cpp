#include "runtime/remote/nodes.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "rdma/remote_options.hpp"
#include "rdma/transport/socket_address.hpp"
#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/transport/ucx/ucx.hpp"

namespace vmem::runtime {
namespace {

static_assert(kMostRemoteChannels == rdma::kMostChannels && kMostRemoteChannels == rdma::kMostStreamChannels);

Result<std::unique_ptr<rdma::Transport>> make_ucx_transport(const NodeConfig& config, rdma::KeyringRef keyring,
                                                            rdma::CertificatesRef certificates, const Clock& clock,
                                                            rdma::Receiver& receiver) {
  auto settings = fabric_settings(config.fabric);
  if (config.gpu && config.gpu->type == rdma::UcxMemoryType::cuda) settings = rdma::with_cuda(std::move(settings));
  return rdma::create_ucx_transport({.self = config.self,
                                     .parameters = config.parameters,
                                     .listen = config.listen,
                                     .keyring = std::move(keyring),
                                     .certificates = std::move(certificates),
                                     .clock = &clock,
                                     .receiver = &receiver,
                                     .channels = config.channels,
                                     .settings = std::move(settings),
                                     .gpu = config.gpu});
}

}  // namespace

std::vector<std::pair<std::string, std::string>> fabric_settings(const std::string& devices) {
  const char* const transports = std::getenv("VMEM_TEST_UCX_TLS");
  if (transports != nullptr)
    VMEM_LOG_WARN(
        "--fabric uses UCX's transports {} (from VMEM_TEST_UCX_TLS), which is meant for tests: whoever "
        "reaches them can change this process's memory",
        transports);
  return {{"TLS", transports == nullptr ? "ib" : transports}, {"NET_DEVICES", devices}};
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
                                        .parameters = config.parameters,
                                        .listen = config.listen,
                                        .keyring = std::move(keyring),
                                        .certificates = std::move(certificates),
                                        .clock = &clock,
                                        .receiver = &receiver,
                                        .channels = config.channels});
}

Result<std::string> tenant_of(const NodeConfig& config) {
  if (!config.secret.empty()) {
    VMEM_ASSIGN(const rdma::KeyringRef keyring, rdma::Keyring::open(config.secret));
    return std::string(keyring->own().tenant());
  }
  if (config.certificates.empty()) return "";
  VMEM_ASSIGN(const rdma::CertificatesRef certificates, rdma::Certificates::open(config.certificates));
  return certificates->name();
}

// With few processors, extra channel threads would only compete with the others.
std::uint32_t channel_count(std::optional<std::uint32_t> asked) {
  return asked.value_or(std::clamp(std::thread::hardware_concurrency() / 4, 1u, 4u));
}

Result<std::string> address_towards(const std::string& other) {
  VMEM_ASSIGN(const rdma::SocketAddress target, rdma::SocketAddress::resolve(other));
  const FileDescriptor socket(::socket(target.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0 || ::connect(socket.get(), target.get(), target.size()) != 0)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("no address of this machine leads to {}: {}", other, std::strerror(errno)), errno);
  VMEM_ASSIGN(const rdma::SocketAddress own, rdma::SocketAddress::bound_to(socket.get()));
  const std::string text = own.text();
  return text.substr(0, text.rfind(':')) + ":0";
}

Result<std::string> resolve_address(const std::string& address) {
  VMEM_ASSIGN(const rdma::SocketAddress resolved, rdma::SocketAddress::resolve(address));
  return resolved.text();
}

}  // namespace vmem::runtime
