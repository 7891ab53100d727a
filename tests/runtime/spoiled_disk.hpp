// A disk of this process that returns other bytes than were written.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <vector>

namespace vmem {

// Overwrites the files in the folder that this process has open, which may have no name any more.
inline void spoil_disk(const std::string& folder) {
  const std::vector<char> zeros(std::size_t{2} << 20);
  std::size_t files = 0;
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(open.path(), error).string();
    if (!target.starts_with(folder)) continue;
    std::fstream file(open.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(0, std::ios::end);
    const auto bytes = file.tellg();
    file.seekp(0);
    for (std::streamoff at = 0; at < bytes; at += std::streamoff(zeros.size()))
      file.write(zeros.data(), std::streamoff(zeros.size()));
    ASSERT_TRUE(file.flush());
    ++files;
  }
  ASSERT_NE(files, 0u);
}

}  // namespace vmem
