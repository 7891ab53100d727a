#include "base/library.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

namespace vmem {

Result<Library> open_library(const char* name, const char* advice) {
  // Never unloaded: threads and hooks of the library outlive any owner of the handle.
  if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) return Library{handle, name};
  const char* reason = dlerror();
  return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{} cannot be loaded ({}); {}", name, reason ? reason : "?", advice));
}

Result<void*> find_function(const Library& library, const char* name, const char* advice) {
  if (void* function = dlsym(library.handle, name)) return function;
  return fail(VMEM_ERROR_UNSUPPORTED, fmt::format("{} lacks {}; {}", library.path, name, advice));
}

}  // namespace vmem
