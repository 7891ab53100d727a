// A toy policy, complete by the contract of migration/policy/policy.hpp: the page that came first
// leaves first, and nothing is prefetched. A real policy would not look at every page in each query
// (see shelf.hpp beside that header).
#pragma once

#include <memory>

#include "migration/policy/policy.hpp"

namespace vmem::migration {

std::unique_ptr<Policy> make_fifo_policy();

}  // namespace vmem::migration
