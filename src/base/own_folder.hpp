// The folder of this code. vmem's own files are found relative to it, so an installation may be
// moved.
#pragma once

#include <filesystem>

namespace vmem {

// Folder of the library or program that contains this code; empty if unknown.
std::filesystem::path own_folder();

}  // namespace vmem
