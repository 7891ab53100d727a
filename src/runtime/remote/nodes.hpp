// This process's identity towards other nodes, and its transport to them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/sizes.hpp"
#include "pagetable/types.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"

namespace vmem::runtime {

// `id`, or a random one if 0, with an incarnation later than any before.
NodeIdentity make_identity(std::uint32_t id);
struct NodeConfig {
  NodeIdentity self;
  std::string listen;  // "": this node only connects
  // `secret`: a file with secrets; `certificates`: a folder. Neither: Unix sockets of this user, on
  // this machine.
  std::string secret, certificates;
  std::string fabric;  // UCX devices; "": TLS, or Unix sockets
  std::uint32_t channels = 1;
  rdma::ClusterParameters parameters{.page_bytes = pagetable::kGranuleBytes};
  // With a fabric: GPU memory that UCX sends from, or receives from when peers send from theirs.
  std::optional<rdma::UcxGpuMemory> gpu = std::nullopt;

  // Peers of the cluster have to have the same address space.
  void join(std::uint64_t base, std::uint64_t space_bytes) {
    parameters.base = base;
    parameters.space_bytes = space_bytes;
  }
};
// UCX's settings, without the prefix UCX_: RDMA on `devices` only. UCX's TCP ports would let
// anybody write to this process's memory. Tests and benchmarks on machines without such devices
// name other transports in VMEM_TEST_UCX_TLS ("tcp"), which is warned of.
std::vector<std::pair<std::string, std::string>> fabric_settings(const std::string& devices);
// `clock` and `receiver` outlive the transport. Errors: INVALID_OPTION for unusable secrets,
// addresses and devices; those of the transport.
Result<std::unique_ptr<rdma::Transport>> make_transport(const NodeConfig& config, const Clock& clock,
                                                        rdma::Receiver& receiver);
// The identity that other nodes see, once it is proved; "": none. Errors: INVALID_OPTION.
Result<std::string> tenant_of(const NodeConfig& config);
// Connections to each node: `asked`, or a number by this machine's processors.
std::uint32_t channel_count(std::optional<std::uint32_t> asked);
// The address of this machine that a connection to `other` (HOST:PORT) comes from, with port 0.
// Sends nothing. Errors: INVALID_OPTION.
Result<std::string> address_towards(const std::string& other);
// The numeric form of an address; looks host names up.
Result<std::string> resolve_address(const std::string& address);

}  // namespace vmem::runtime
