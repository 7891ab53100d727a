// A temporary folder for a local cluster, and what tests look for in it.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "base/status.hpp"

namespace vmem::tools::local_cluster {

using ::testing::HasSubstr;

// Holds if the result is an error of this status; says what it is.
template <class Result>
std::string message_of(const Result& result, vmem_status status = VMEM_ERROR_INVALID_OPTION) {
  if (result) return "no error";
  EXPECT_EQ(result.error().status, status) << result.error().message;
  return result.error().message;
}

#define ASSERT_GOOD(result) ASSERT_TRUE(result) << (result).error().message

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "vmem-cluster-test-XXXXXX").string();
    around_ = ::mkdtemp(name.data());
  }
  ~FolderTest() override {
    std::error_code ignored;
    std::filesystem::remove_all(around_, ignored);
  }
  std::string around(const std::string& name) const { return around_ / name; }
  std::string path() const { return around("cluster"); }
  static std::string text_in(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  // A program that a shell runs.
  std::string script(const std::string& name, const std::string& text) const {
    const std::string file = around(name);
    std::ofstream(file) << "#!/bin/sh\n" << text << "\n";
    ::chmod(file.c_str(), 0700);
    return file;
  }

 private:
  std::filesystem::path around_;
};

}  // namespace vmem::tools::local_cluster
