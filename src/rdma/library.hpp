// Libraries that only some programs need, found when the first of them is wanted: UCX.
#pragma once

#include <array>
#include <string>

#include "base/status.hpp"

namespace vmem::rdma {

struct Library {
  void* handle = nullptr;
  std::string path;
};

// Never unloaded. `advice` says what to install. Errors: UNSUPPORTED.
Result<Library> open_library(const char* name, const char* advice);
// Errors: UNSUPPORTED, naming library and function.
Result<void*> find_function(const Library& library, const char* name, const char* advice);

}  // namespace vmem::rdma
