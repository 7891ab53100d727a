// Commit that this program was built from.
#pragma once

namespace vmem::bench {

// Full hash, with "-dirty" if the tree had changes; "unknown" outside git.
extern const char* const kCommit;

}  // namespace vmem::bench
