#include "bench/machine.hpp"

#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace vmem::bench {
namespace {

// The rest of the first line of `path` that begins with `key`, without the separators ` :=\t"`.
std::string field(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const auto begin = line.find_first_not_of(" \t:=\"", key.size());
    if (begin == std::string::npos) return {};
    return line.substr(begin, line.find_last_not_of(" \t\"") - begin + 1);
  }
  return {};
}

std::uint64_t kibibytes(const std::string& key) {
  const std::string text = field("/proc/meminfo", key);
  return text.empty() ? 0 : std::strtoull(text.c_str(), nullptr, 10) * 1024;
}

std::optional<std::uint64_t> read_number(const std::string& path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;  // absent, or "max"
}

struct Container {
  std::optional<std::uint64_t> limit;
  std::uint64_t used = 0;
};

// The tightest limit among this process's control group and its ancestors (version 2), and version
// 1's.
Container read_container() {
  Container tightest;
  const auto consider = [&](const std::string& limit_path, const std::string& used_path) {
    const auto limit = read_number(limit_path);
    // Version 1 writes "no limit" as a huge number.
    if (!limit || *limit >= std::uint64_t{1} << 60) return;
    if (!tightest.limit || *limit < *tightest.limit) tightest = {limit, read_number(used_path).value_or(0)};
  };
  for (std::filesystem::path group = field("/proc/self/cgroup", "0::"); !group.empty(); group = group.parent_path()) {
    const std::string folder = "/sys/fs/cgroup" + group.string();
    consider(folder + "/memory.max", folder + "/memory.current");
    if (group == group.root_path()) break;
  }
  consider("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes");
  return tightest;
}

unsigned usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return static_cast<unsigned>(CPU_COUNT(&set));
}

std::string system_name() {
  utsname name{};
  uname(&name);
  const std::string distribution = field("/etc/os-release", "PRETTY_NAME");
  return fmt::format("{}{}{} {}", distribution, distribution.empty() ? "" : ", ", name.sysname, name.release);
}

}  // namespace

Machine read_machine() {
  Machine machine;
  machine.cpu = field("/proc/cpuinfo", "model name");
  machine.cores = usable_cores();
  machine.system = system_name();
  machine.memory_bytes = kibibytes("MemTotal:");
  machine.memory_available_bytes = kibibytes("MemAvailable:");
  const Container container = read_container();
  machine.container_limit_bytes = container.limit;
  if (container.limit)
    machine.memory_available_bytes =
        std::min(machine.memory_available_bytes, *container.limit - std::min(*container.limit, container.used));
  return machine;
}

}  // namespace vmem::bench
