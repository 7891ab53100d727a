// Libraries that are part of vmem's binaries: a fix of theirs reaches users only with a new vmem.
// Names are those of the SBOM (scripts/sbom.py); scripts/check_dist.py compares the two.
#include <CLI/Version.hpp>
#include <boost/version.hpp>
#include <fmt/format.h>
#include <lz4.h>
#include <nlohmann/json.hpp>
#include <openssl/crypto.h>
#include <spdlog/version.h>
#include <string>
#include <utility>
#include <vector>
#include <xxhash.h>
#include <zstd.h>

#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {
namespace {

std::string dotted(int major, int minor, int patch) { return fmt::format("{}.{}.{}", major, minor, patch); }

// From the library's code where it can say it, otherwise from the headers that it was built with.
std::vector<std::pair<const char*, std::string>> versions() {
  return {
      {"boost", dotted(BOOST_VERSION / 100'000, BOOST_VERSION / 100 % 1'000, BOOST_VERSION % 100)},
      {"cli11", CLI11_VERSION},
      {"fmt", dotted(FMT_VERSION / 10'000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)},
      {"libstdc++", dotted(__GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__)},
      {"liburing", VMEM_URING_VERSION},
      {"lz4", LZ4_versionString()},
      {"nlohmann-json", dotted(NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH)},
      {"openssl", dotted(int(OPENSSL_version_major()), int(OPENSSL_version_minor()), int(OPENSSL_version_patch()))},
      {"spdlog", dotted(SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH)},
      {"xxhash", dotted(XXH_VERSION_MAJOR, XXH_VERSION_MINOR, XXH_VERSION_RELEASE)},
      {"zstd", ZSTD_versionString()},
  };
}

}  // namespace

void check_bundled(Report& report) {
  std::string text;
  for (const auto& [name, version] : versions())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, version);
  report.ok("bundled libraries", text);
}

}  // namespace vmem::tools::doctor
