#include "base/cache_folder.hpp"

#include <cstdlib>

namespace vmem {

std::string cache_folder() {
  // The XDG specification: ignore anything but an absolute path.
  const char* folder = ::getenv("XDG_CACHE_HOME");
  if (folder != nullptr && folder[0] == '/') return folder;
  const char* home = ::getenv("HOME");
  return home != nullptr && home[0] == '/' ? std::string(home) + "/.cache" : "";
}

}  // namespace vmem
