// The Transport over UCX: RDMA where available, otherwise shared memory and TCP. UCX is loaded at
// run time. Nodes first authenticate on a connection like the stream transport's.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"
#include "rdma/trust/certificates.hpp"
#include "rdma/trust/keyring.hpp"

namespace vmem::rdma {

inline constexpr std::uint32_t kMostChannels = 8;

struct UcxConfig {
  NodeIdentity self;
  ClusterParameters parameters;
  std::string listen;            // "127.0.0.1:0"; "": accepts no connections
  KeyringRef keyring;            // or certificates, or neither
  CertificatesRef certificates;  // neither: Unix sockets prove the user, on one machine
  const Clock* clock = nullptr;  // outlives the transport, as does receiver
  Receiver* receiver = nullptr;
  std::uint64_t handshake_us = 5'000'000;  // deadline for nodes that connect to this one
  // Connections per peer, from 1 to kMostChannels; two nodes use the smaller of their numbers. From
  // two on, each has its own thread in the transport, unless channel_threads is false.
  std::uint32_t channels = 1;
  bool channel_threads = true;
  // UCX settings without the prefix UCX_: {"TLS", "tcp"}. They override the environment.
  std::vector<std::pair<std::string, std::string>> settings;
  // Payloads are sent from GPU memory, too, and received that peers send from theirs. For CUDA
  // memory, settings are with_cuda().
  std::optional<UcxGpuMemory> gpu = std::nullopt;
};

// Errors: UNSUPPORTED without UCX 1.13 or newer, saying what to install; INVALID_OPTION.
Result<std::unique_ptr<Transport>> create_ucx_transport(UcxConfig config);

}  // namespace vmem::rdma
