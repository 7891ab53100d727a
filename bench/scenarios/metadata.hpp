// Host memory that vmem keeps for a page.
#pragma once

#include "bench/context.hpp"

namespace vmem::bench {

// Adds two records: pages in HBM and host memory only, and pages that use every tier there is.
Status add_metadata(Context& context);

}  // namespace vmem::bench
