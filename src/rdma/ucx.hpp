// The Transport over UCX: RDMA where the machine has it, shared memory and TCP everywhere. UCX is loaded at run time.
// Nodes prove who they are on a connection of the stream transport's kind first.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "rdma/transport.hpp"
#include "rdma/trust/certificates.hpp"
#include "rdma/trust/keyring.hpp"

namespace vmem::rdma {

inline constexpr std::uint32_t kMostChannels = 8;

struct UcxConfig {
  NodeIdentity self;
  ClusterParameters parameters;
  std::string listen;            // "127.0.0.1:0"; "": nobody can connect to this node
  KeyringRef keyring;            // or
  CertificatesRef certificates;  // without either, nodes of one machine prove their user by Unix sockets
  const Clock* clock = nullptr;  // outlives the transport, as does
  Receiver* receiver = nullptr;
  std::uint64_t handshake_us = 5'000'000;  // for nodes that connect to this one
  // Connections to each peer that messages go over, from 1 to kMostChannels; two nodes use as many as both have. From two on, each has
  // a thread of the transport's that moves its bytes, unless progress() shall.
  std::uint32_t channels = 1;
  bool channel_threads = true;
  // UCX's own, without UCX_: {"TLS", "tcp"}. They go before the environment's.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Errors: UNSUPPORTED without UCX 1.13 or newer, saying what to install; INVALID_OPTION.
Result<std::unique_ptr<Transport>> create_ucx_transport(UcxConfig config);

}  // namespace vmem::rdma
