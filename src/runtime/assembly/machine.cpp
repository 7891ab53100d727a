#include "runtime/assembly/machine.hpp"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace vmem::runtime {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();

std::uint64_t meminfo_bytes(const std::string& wanted) {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  std::uint64_t kib = 0;
  while (file >> name >> kib) {
    if (name == wanted) return kib << 10;
    std::getline(file, unit);
  }
  return 0;
}

// "max" and missing files mean no limit.
std::uint64_t cgroup_bytes(const char* path) {
  std::ifstream file(path);
  std::uint64_t bytes = 0;
  return file >> bytes ? bytes : kUnlimited;
}

}  // namespace

std::uint64_t total_host_bytes() {
  return std::min(meminfo_bytes("MemTotal:"), cgroup_bytes("/sys/fs/cgroup/memory.max"));
}

std::uint64_t available_host_bytes() {
  const std::uint64_t limit = cgroup_bytes("/sys/fs/cgroup/memory.max");
  const std::uint64_t used = limit == kUnlimited ? 0 : std::min(limit, cgroup_bytes("/sys/fs/cgroup/memory.current"));
  return std::min(meminfo_bytes("MemAvailable:"), limit - used);
}

}  // namespace vmem::runtime
