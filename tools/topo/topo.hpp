// `vmem topo`: which memories there are, what joins them, and how fast, measured once and kept.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"
#include "topology/cache.hpp"

namespace vmem::tools::topo {

struct Request {
  std::string driver = "auto";
  std::string file = "auto";  // as the option topology
  bool measure = false;       // though what was measured before would do
  std::vector<std::string> directories;
};

struct Answer {
  topology::Saved saved;
  std::vector<std::string> notes;  // where the figures are from, and why
};

// Errors: NO_DRIVER, DRIVER, INVALID_OPTION (a directory that cannot be measured, a file that cannot be written).
Result<Answer> examine(const Request& request);

std::string to_text(const Answer& answer);

}  // namespace vmem::tools::topo
