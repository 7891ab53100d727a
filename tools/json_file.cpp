#include "tools/json_file.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace vmem::tools {

void add_json(CLI::App& app, std::string& path, const char* what) {
  app.add_option("--json", path, fmt::format("Write {} to this file; - for standard output, instead of text", what))
      ->type_name("FILE");
}

Status check_json_file(const std::string& path) {
  if (path.empty() || is_standard_output(path) || std::ofstream(path, std::ios::app)) return {};
  const int error = errno;
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--json {} is not writable: {}", path, std::strerror(error)),
              error);
}

Status check_json_file(const std::string& path, const std::string& read) {
  std::error_code code;
  if (std::filesystem::equivalent(path, read, code))
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--json names {} itself; name another file", read));
  return check_json_file(path);
}

Status write_json_file(const std::string& path, const std::string& text) {
  if (path.empty()) return {};
  if (is_standard_output(path)) {
    fmt::print("{}", text);
    return {};
  }
  std::ofstream file(path);
  file << text;
  file.close();
  if (file) return {};
  const int error = errno;
  return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--json {} cannot be written: {}", path, std::strerror(error)),
              error);
}

}  // namespace vmem::tools
