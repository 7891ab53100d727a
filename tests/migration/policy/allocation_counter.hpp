// Bytes allocated with operator new and not yet deleted in this program, to prove that nothing is retained.
#pragma once

#include <cstdint>

namespace vmem::migration::testing {

std::int64_t live_bytes();

}  // namespace vmem::migration::testing
