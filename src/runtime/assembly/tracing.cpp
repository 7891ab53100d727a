#include "runtime/assembly/tracing.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include "base/clock.hpp"

namespace vmem::runtime {
namespace {

constexpr std::size_t kCommandMax = 4000;

std::string command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string words(kCommandMax, '\0');
  file.read(words.data(), std::streamsize(words.size()));
  words.resize(std::size_t(std::max<std::streamsize>(file.gcount(), 1) - 1));
  std::ranges::replace(words, '\0', ' ');
  return words;
}

std::string name_of(const gpu::Driver& driver, CUdevice device) {
  std::string name(256, '\0');
  if (driver->cuDeviceGetName(name.data(), int(name.size()), device) != CUDA_SUCCESS) return "?";
  name.resize(name.find('\0'));
  return name;
}

// The best rate between the device and any host node; 0: none was measured.
std::uint64_t rate(const topology::Topology& topology, topology::NodeIndex device, bool in) {
  double best = 0;
  for (const topology::NodeIndex host : topology.all(topology::NodeKind::host)) {
    const topology::Copy* const copy = in ? topology.copy(host, device) : topology.copy(device, host);
    if (copy != nullptr) best = std::max(best, copy->rate.bytes_per_s);
  }
  return std::uint64_t(best);
}

trace::Device describe(const Device& device, std::uint64_t hbm_bytes, const topology::Topology& topology) {
  trace::Device described{name_of(*device.driver, device.handle), hbm_bytes, 0, 0};
  if (const auto node = topology.find(topology::NodeKind::device, device.ordinal)) {
    described.in_bytes_per_s = rate(topology, *node, true);
    described.out_bytes_per_s = rate(topology, *node, false);
  }
  return described;
}

}  // namespace

Result<std::unique_ptr<trace::Recorder>> start_trace(const Options& options, const Devices& devices,
                                                     std::span<const migration::MoverDevice> budgets,
                                                     const topology::Topology& topology, std::uint64_t base) {
  trace::Header header;
  header.version = VMEM_VERSION;
  header.command = command_line();
  header.base = base;
  for (std::size_t i = 0; i < devices.size(); ++i) {
    header.emulated = devices[i].driver->emulated();
    header.devices.push_back(describe(devices[i], budgets[i].hbm_bytes, topology));
  }
  return trace::Recorder::create(options.trace, options.trace_limit_bytes, header, SteadyClock::now_ns());
}

}  // namespace vmem::runtime
