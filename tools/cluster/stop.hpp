// Ends a local cluster: its daemons first, which leave in order while etcd still answers.
#pragma once

#include <string>
#include <vector>

#include "tools/cluster/ending.hpp"
#include "tools/cluster/state.hpp"

namespace vmem::tools::local_cluster {

struct Stopped {
  std::vector<std::string> ended;   // names of processes that lived
  std::vector<std::string> killed;  // those of them that did not end by SIGTERM
};

// Then removes the cluster's files, and the folder if the cluster made it. If a process does not
// end, the files stay, so that it can be tried again.
// Errors: those of end_processes() and of the folder. REQUIRES: the folder's lock is held.
Result<Stopped> stop(const Folder& folder, const State& state, const Patience& patience = {});

// Removes what an `up` left that was killed before it had written a state: it had started nothing.
// True if there was something. Errors: those of the folder. REQUIRES: the folder's lock is held,
// and it has no state.
Result<bool> remove_unwritten(const Folder& folder);

}  // namespace vmem::tools::local_cluster
