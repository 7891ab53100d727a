// A short visit to other nodes, over connections of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "rdma/transport/transport.hpp"
#include "runtime/remote/nodes.hpp"

namespace vmem::runtime {

// An event of the node at addresses[at]. True: nothing more is expected of it.
using HearVisited = std::function<Result<bool>(rdma::Transport& transport, const rdma::Event& event, std::size_t at)>;

// Connects to nodes, and passes on what they send without a payload, until `hear` has returned true
// for each of them. Returns how many are left after most_us; an address that cannot be used is one
// of these. Errors: those of make_transport and `hear`.
Result<std::size_t> visit(const NodeConfig& visitor, const std::vector<std::string>& addresses, std::uint64_t most_us,
                          const HearVisited& hear);

}  // namespace vmem::runtime
