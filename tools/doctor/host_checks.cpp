#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/sizes.hpp"
#include "bench/machine.hpp"
#include "tools/doctor/doctor.hpp"

namespace vmem::tools::doctor {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

void check_memory(Report& report, const bench::Machine& machine) {
  constexpr const char* kTopic = "host memory";
  const std::string text =
      fmt::format("{} of {} available; the host pool takes half of it unless the option host says otherwise",
                  format_bytes(machine.memory_available_bytes), format_bytes(machine.memory_bytes));
  if (machine.memory_available_bytes < 2 * kGiB)
    report.note(kTopic, text, "little room for pages that leave HBM: free memory, or use a larger machine");
  else
    report.ok(kTopic, text);
  if (machine.container_limit_bytes)
    report.note(kTopic,
                fmt::format("the container may use {}; pinned pages count towards it",
                            format_bytes(*machine.container_limit_bytes)),
                "raise the container's memory limit if the host pool should be larger");
}

void check_locked_memory(Report& report) {
  constexpr const char* kTopic = "host memory";
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
    report.ok(kTopic, "locked memory is not limited (RLIMIT_MEMLOCK)");
  else
    report.note(
        kTopic,
        fmt::format(
            "locked memory is limited to {} (RLIMIT_MEMLOCK): it does not bind memory that the CUDA driver pins, "
            "only registration with network cards",
            format_bytes(limit.rlim_cur)),
        "before using RDMA: ulimit -l unlimited");
}

std::optional<std::uint64_t> read_setting(const char* path) {
  std::ifstream in(path);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// The emulated driver's mappings count against the process's limit; the CUDA driver's do not.
void check_mapping_count(Report& report, bool emulated) {
  constexpr std::uint64_t kEnough = 60'000;
  const auto count = read_setting("/proc/sys/vm/max_map_count");
  if (!count) return;
  const std::string text = fmt::format("a process may have {} mappings (vm.max_map_count)", *count);
  if (emulated && *count < kEnough)
    report.note("address space", text + "; the emulated driver uses one for each mapped page",
                "sysctl -w vm.max_map_count=262144");
  else
    report.ok("address space", text);
}

// Tries the first step of vmem_init; an unused range costs nothing.
void check_reservation(Report& report) {
  constexpr std::uint64_t kRange = std::uint64_t{1} << 40;
  void* range = mmap(nullptr, kRange, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) {
    report.problem("address space", fmt::format("1 TiB of addresses cannot be reserved: {}", std::strerror(errno)),
                   "ulimit -v unlimited; or make the option space smaller");
    return;
  }
  munmap(range, kRange);
  report.ok("address space", "1 TiB of addresses can be reserved");
}

}  // namespace

void check_host(Report& report, bool emulated) {
  const bench::Machine machine = bench::read_machine();
  report.ok("machine", fmt::format("{}, {} cores, {}", machine.cpu, machine.cores, machine.system));
  check_memory(report, machine);
  check_locked_memory(report);
  check_reservation(report);
  check_mapping_count(report, emulated);
}

}  // namespace vmem::tools::doctor
