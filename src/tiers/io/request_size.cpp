#include "tiers/io/request_size.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <fstream>
#include <optional>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kBlock = 4096;       // also the smallest memory segment
constexpr std::uint64_t kLeast = 64 * 1024;  // smaller requests cost more than splitting

std::optional<std::uint64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::uint64_t number = 0;
  if (!(file >> number)) return std::nullopt;
  return number;
}

}  // namespace

std::uint32_t uncut_request_bytes(const std::string& queue, std::uint32_t most) {
  std::uint64_t bytes = most;
  const auto segments = number_in(queue + "/max_segments"), kilobytes = number_in(queue + "/max_sectors_kb");
  if (segments) bytes = std::min(bytes, *segments * kBlock);
  if (kilobytes) bytes = std::min(bytes, *kilobytes * 1024);
  return std::uint32_t(std::min<std::uint64_t>(most, std::max(kLeast, bytes / kBlock * kBlock)));
}

std::uint32_t uncut_request_bytes(int file, std::uint32_t most) {
  struct stat about{};
  if (::fstat(file, &about) != 0) return most;
  const std::string device = fmt::format("/sys/dev/block/{}:{}", major(about.st_dev), minor(about.st_dev));
  // A partition uses its disk's queue.
  const bool whole = ::stat((device + "/queue").c_str(), &about) == 0;
  return uncut_request_bytes(device + (whole ? "/queue" : "/../queue"), most);
}

std::uint32_t even_request_bytes(std::uint64_t bytes, std::uint32_t most) {
  const std::uint64_t requests = std::max<std::uint64_t>((bytes + most - 1) / most, 1);
  const std::uint64_t each = (bytes + requests - 1) / requests;
  return std::uint32_t(std::min<std::uint64_t>(most, (each + kBlock - 1) / kBlock * kBlock));
}

}  // namespace vmem::tiers
