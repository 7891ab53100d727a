// Requests in messages.
#pragma once

#include <string>

#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

// "granting a lease of 90 s"
std::string describe(const RegistryRequest& request);

}  // namespace vmem::cluster
