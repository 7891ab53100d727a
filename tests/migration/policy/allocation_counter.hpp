// Counts bytes allocated with operator new and not yet deleted, to detect retained memory.
#pragma once

#include <cstdint>

namespace vmem::migration::testing {

std::int64_t live_bytes();

}  // namespace vmem::migration::testing
