// A folder for a new local cluster.
#pragma once

#include <string>

#include "tools/cluster/stop.hpp"

namespace vmem::tools::local_cluster {

struct Claim {
  Folder folder;
  // Names of processes of an earlier cluster that were left: its start or its end was cut off.
  std::vector<std::string> ended;
};

// Makes and locks the folder. Ends and removes what is left of an earlier cluster there, unless it
// is up. Errors: INVALID_OPTION if it is; those of Folder::make(), read_state() and stop().
Result<Claim> claim(const std::string& path, const Patience& patience = {});

}  // namespace vmem::tools::local_cluster
