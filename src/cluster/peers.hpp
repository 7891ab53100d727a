// A list of peers as users write it: "10.0.0.1:7000,2@10.0.0.2:7000"; an id before @ says which node has to be there.
#pragma once

#include <string_view>

#include "cluster/roster.hpp"

namespace vmem::cluster {

// Errors: INVALID_OPTION, naming the entry.
Result<std::vector<Peer>> parse_peers(std::string_view text);

}  // namespace vmem::cluster
