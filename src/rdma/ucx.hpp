// The Transport over UCX: RDMA where the machine has it, shared memory and TCP everywhere. UCX is loaded at run time.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "rdma/crypto.hpp"
#include "rdma/handshake.hpp"
#include "rdma/transport.hpp"

namespace vmem::rdma {

struct UcxConfig {
  NodeIdentity self;
  ClusterParameters parameters;
  std::string listen;  // "127.0.0.1:0"; "": nobody can connect to this node
  Secret secret = Secret::none();
  const Clock* clock = nullptr;  // outlives the transport, as does
  Receiver* receiver = nullptr;
  std::uint64_t handshake_us = 5'000'000;  // for nodes that connect to this one
  // UCX's own, without UCX_: {"TLS", "tcp"}. They go before the environment's.
  std::vector<std::pair<std::string, std::string>> settings;
};

// Errors: UNSUPPORTED without UCX 1.13 or newer or without libsodium, saying what to install; INVALID_OPTION.
Result<std::unique_ptr<Transport>> create_ucx_transport(UcxConfig config);

}  // namespace vmem::rdma
