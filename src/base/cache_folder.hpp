#pragma once

#include <string>

namespace vmem {

// Folder for files that vmem can recreate: $XDG_CACHE_HOME, or ~/.cache; "" if neither is set.
std::string cache_folder();

}  // namespace vmem
