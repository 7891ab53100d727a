// A list of peers as users write it: "10.0.0.1:7000,2@10.0.0.2:7000". An id before @ is the
// required node id at the address.
#pragma once

#include <string_view>

#include "cluster/roster.hpp"

namespace vmem::cluster {

// Errors: INVALID_OPTION, naming the entry.
Result<std::vector<Peer>> parse_peers(std::string_view text);

}  // namespace vmem::cluster
