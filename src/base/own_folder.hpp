// Where this code lies: files that belong to vmem are found from there, so that an installation may be moved.
#pragma once

#include <filesystem>

namespace vmem {

// Of the library or program that contains this code; empty if that cannot be found out.
std::filesystem::path own_folder();

}  // namespace vmem
