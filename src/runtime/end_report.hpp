// Tells lenders that a process has ended, over a connection of its own that is proved as any node's: what that process
// borrowed is free at once. Whoever calls has seen the end (a pidfd).
#pragma once

#include <string>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"

namespace vmem::runtime {

// A process that borrows, and from whom.
struct BorrowingNode {
  NodeIdentity node;
  std::string secret, certificates, fabric;  // as those of NodeConfig
  std::vector<std::string> lenders;
};

// Returns when each lender has answered, or could not be reached, within 2 s. Errors: those of the transport; TIMEOUT,
// with how many did not answer.
Status report_end(const BorrowingNode& ended);

}  // namespace vmem::runtime
