// Options of this module. Messages of vmem.
#pragma once

#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct LogOptions {
  std::string log_level = "warn";  // --log: trace debug info warn error off
};

std::vector<Option<LogOptions>> log_options();

}  // namespace vmem
