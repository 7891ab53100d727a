// Options of this module.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct TraceOptions {
  std::string trace;                                           // --trace: "off" (empty) or a file
  std::uint64_t trace_limit_bytes = std::uint64_t{256} << 20;  // --trace-limit: of the file
  std::uint32_t trace_epoch = 64;                              // --trace-epoch: launches
};

std::vector<Option<TraceOptions>> trace_options();

}  // namespace vmem
