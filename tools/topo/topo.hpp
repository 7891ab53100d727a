// `vmem topo`: the machine's memories and links, and their rates, measured once and saved.
#pragma once

#include <string>
#include <vector>

#include "base/status.hpp"
#include "topology/cache.hpp"

namespace vmem::tools::topo {

struct Request {
  std::string driver = "auto";
  std::string file = "auto";  // as the option topology
  bool measure = false;       // even if saved rates are valid
  std::vector<std::string> directories;
};

struct Answer {
  topology::Saved saved;
  std::vector<std::string> notes;  // origin of the figures, and why
};

// Errors: NO_DRIVER, DRIVER, INVALID_OPTION (a directory that cannot be measured, a file that
// cannot be written).
Result<Answer> examine(const Request& request);

std::string to_text(const Answer& answer);

}  // namespace vmem::tools::topo
