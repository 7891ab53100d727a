#include "tools/topo/topo.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <ctime>

#include "base/terminal.hpp"
#include "gpu/driver.hpp"
#include "topology/discover.hpp"
#include "topology/measure.hpp"

namespace vmem::tools::topo {
namespace {

// Emulated memory is the host's and its links are slower, so measure less.
constexpr std::uint64_t kEmulatedBufferBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kEmulatedTimeUs = 5'000;

std::string time_now() {
  const std::time_t now = std::time(nullptr);
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(now));
}

Result<topology::Topology> measure_anew(const gpu::DriverRef& driver) {
  VMEM_ASSIGN(topology::Topology found, topology::discover(*driver));
  topology::MeasureOptions options;
  if (driver->emulated()) {
    options.buffer_bytes = kEmulatedBufferBytes;
    options.time_us = kEmulatedTimeUs;
  }
  const bool seen = terminal_of(STDERR_FILENO) == Terminal::full;
  if (seen) options.on_step = [](std::string_view what) { fmt::print(stderr, "\rmeasuring {}\x1b[K", what); };
  const Status measured = topology::measure(found, driver, options);
  if (seen) fmt::print(stderr, "\r\x1b[K");
  VMEM_TRY(measured);
  return found;
}

Status measure_directories(topology::Topology& machine, const Request& request) {
  for (const std::string& directory : request.directories) VMEM_TRY(topology::measure_directory(machine, directory));
  return {};
}

Result<Answer> examine_without_gpu(const Request& request, const std::string& why) {
  Answer answer;
  std::array<char, 256> host{};
  (void)::gethostname(host.data(), host.size() - 1);
  answer.saved.key = {.machine = host.data(), .driver = "none", .devices = {}};
  answer.saved.topology = topology::discover_host(why);
  VMEM_TRY(measure_directories(answer.saved.topology, request));
  answer.saved.measured_at = time_now();
  answer.notes.emplace_back(request.directories.empty() ? "Nothing was measured; --disk DIRECTORY measures a disk."
                                                        : "Nothing is kept: rates are kept for machines with a GPU.");
  return answer;
}

}  // namespace

Result<Answer> examine(const Request& request) {
  auto loaded = gpu::Driver::load(request.driver);
  if (!loaded && loaded.error().status == VMEM_ERROR_NO_DRIVER && request.driver == "auto")
    return examine_without_gpu(request, loaded.error().message);
  VMEM_ASSIGN(const gpu::DriverRef driver, std::move(loaded));
  const std::string file = topology::cache_path(request.file, driver->emulated());
  Answer answer;
  VMEM_ASSIGN(answer.saved.key, topology::machine_key(*driver));
  bool changed = true;
  if (!file.empty() && !request.measure) {
    auto known = topology::load_saved(file, answer.saved.key);
    changed = !known;
    if (known) {
      answer.saved = *std::move(known);
      answer.notes.push_back(
          fmt::format("Measured on {}, kept in {}; --measure measures again.", answer.saved.measured_at, file));
    } else if (known.error().reason != topology::Miss::Reason::absent) {
      answer.notes.push_back(known.error().message + "; measured anew.");
    }
  }
  if (changed) {
    VMEM_ASSIGN(answer.saved.topology, measure_anew(driver));
    answer.saved.measured_at = time_now();
  }
  VMEM_TRY(measure_directories(answer.saved.topology, request));
  if (file.empty() || (!changed && request.directories.empty())) return answer;
  VMEM_TRY(topology::save(file, answer.saved));
  answer.notes.push_back(fmt::format("Kept in {}, where programs under vmem find it.", file));
  return answer;
}

}  // namespace vmem::tools::topo
