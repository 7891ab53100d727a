// Ends processes that need not be children of this one.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <vector>

#include "base/process_id.hpp"

namespace vmem::tools::local_cluster {

struct Patience {
  // Then SIGKILL. A daemon waits 10 s for others to take over what it keeps.
  std::chrono::milliseconds after_term{20'000};
  std::chrono::milliseconds after_kill{5'000};  // then an error
};

// SIGTERM to all of them, SIGKILL to those that live on. Returns once all have ended, with the
// places of those that had to be killed; processes that had ended before are left out.
// Errors: TIMEOUT, naming a process that outlives SIGKILL; UNSUPPORTED as of watch().
Result<std::vector<std::size_t>> end_processes(std::span<const ProcessId> processes, const Patience& patience);

}  // namespace vmem::tools::local_cluster
