// What this process is to other nodes, and how it reaches them.
#pragma once

#include <cstdint>
#include <optional>

#include "base/options.hpp"
#include "rdma/ucx.hpp"

namespace vmem::runtime {

// An id nobody else has, by chance, if none is given, and an incarnation later than any before.
NodeIdentity make_identity(std::uint32_t id);
// For the transport: with the secret of the file, or none. Nodes that only lend share pages of one granule, and no addresses yet.
Result<rdma::UcxConfig> make_ucx_config(NodeIdentity self, const std::string& secret, const Clock& clock);
// Connections to each node, as asked for, or as this machine's processors allow.
std::uint32_t channel_count(std::optional<std::uint32_t> asked);
// Numeric, names looked up.
Result<std::string> resolve_address(const std::string& address);

}  // namespace vmem::runtime
