// What this process is to other nodes, and how it reaches them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/options.hpp"
#include "rdma/transport.hpp"

namespace vmem::runtime {

// An id nobody else has, by chance, if none is given, and an incarnation later than any before.
NodeIdentity make_identity(std::uint32_t id);
struct NodeConfig {
  NodeIdentity self;
  std::string listen;  // "": this node only connects
  // A file with secrets, or a folder with certificates; neither: Unix sockets of this user, on this machine.
  std::string secret, certificates;
  std::string fabric;  // UCX devices; "": TLS, or Unix sockets
  std::uint32_t channels = 1;
};
// UCX's settings, without UCX_: RDMA, on `devices` and no others. UCX's TCP ports would let anybody write to this process's memory.
std::vector<std::pair<std::string, std::string>> fabric_settings(const std::string& devices);
// `clock` and `receiver` outlive the transport. Errors: INVALID_OPTION for secrets, addresses and
// devices that cannot be used; those of the transport.
Result<std::unique_ptr<rdma::Transport>> make_transport(const NodeConfig& config, const Clock& clock,
                                                        rdma::Receiver& receiver);
// Connections to each node, as asked for, or as this machine's processors allow.
std::uint32_t channel_count(std::optional<std::uint32_t> asked);
// Numeric, names looked up.
Result<std::string> resolve_address(const std::string& address);

}  // namespace vmem::runtime
