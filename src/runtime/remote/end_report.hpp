// Tells lenders that a process has ended, so that they free its room at once. Uses its own
// connection, authenticated like any node's. REQUIRES: the caller has seen the end (a pidfd).
#pragma once

#include <string>
#include <vector>

#include "base/node.hpp"
#include "base/status.hpp"

namespace vmem::runtime {

// A borrowing process and its lenders.
struct BorrowingNode {
  NodeIdentity node;
  std::string secret, certificates, fabric;  // as in NodeConfig
  std::vector<std::string> lenders;
};

// Returns once each lender has answered or was unreachable, within 2 s. Errors: those of the
// transport; TIMEOUT, with the number of lenders that did not answer.
Status report_end(const BorrowingNode& ended);

}  // namespace vmem::runtime
