#include "base/own_folder.hpp"

#include <dlfcn.h>

#include <system_error>

namespace vmem {

// The loader knows a program by its argv[0], which may not resolve.
std::filesystem::path own_folder() {
  Dl_info self{};
  std::error_code code;
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &self) != 0 && self.dli_fname) {
    const auto file = std::filesystem::canonical(self.dli_fname, code);
    if (!code) return file.parent_path();
  }
  return std::filesystem::canonical("/proc/self/exe", code).parent_path();
}

}  // namespace vmem
