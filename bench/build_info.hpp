// Which commit this program was built from.
#pragma once

namespace vmem::bench {

extern const char* const kCommit;  // full hash, with "-dirty" when the tree had changes; "unknown" outside git

}  // namespace vmem::bench
