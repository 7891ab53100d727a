// Pages to and from a daemon's HBM, against the same pages to and from a daemon's memory.
#pragma once

#include <string>

#include "bench/context.hpp"

namespace vmem::bench {

// What the rows are called.
struct LendRows {
  std::string scenario, prefix;  // the prefix begins each variant
};
// Two rows for each page size, out and in.
Status measure_lending(Context& context, const LendRows& rows);

}  // namespace vmem::bench
