// Libraries that only some programs need, e.g. UCX and libcurl: loaded at first use.
#pragma once

#include <string>

#include "base/status.hpp"

namespace vmem {

struct Library {
  void* handle = nullptr;
  std::string path;
};

// The library is never unloaded. `advice` says what to install. Errors: UNSUPPORTED.
Result<Library> open_library(const char* name, const char* advice);
// Errors: UNSUPPORTED, naming the library and the function.
Result<void*> find_function(const Library& library, const char* name, const char* advice);

}  // namespace vmem
