#include "gpu/driver_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/option_parse.hpp"

namespace vmem {
namespace {

constexpr int kLargestDevice = 255;

Result<std::vector<int>> parse_devices(std::string_view text) {
  std::vector<int> devices;
  if (text == "all") return devices;
  for (const std::string_view part : split_at_commas(text)) {
    VMEM_ASSIGN(const std::uint64_t device, parse_count(part, kLargestDevice));
    if (std::ranges::find(devices, int(device)) != devices.end()) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("device {} is named twice", device));
    }
    devices.push_back(int(device));
  }
  return devices;
}

Result<std::string> parse_driver(std::string_view text) {
  const bool path = text.contains('/') || text.contains(".so");
  if (text == "auto" || text == "emulated" || path) return std::string(text);
  return fail(VMEM_ERROR_INVALID_OPTION, "neither a known driver nor a path");
}

Option<DriverOptions> devices_option() {
  return define({.name = "devices",
                 .values = "all, or CUDA ordinals such as 0,1, each once",
                 .help = "The GPUs in use.",
                 .print =
                     [](const DriverOptions& options) {
                       return options.devices.empty() ? "all" : fmt::format("{}", fmt::join(options.devices, ","));
                     }},
                &DriverOptions::devices, parse_devices);
}

Option<DriverOptions> driver_option() {
  return define({.name = "driver",
                 .values = "auto, emulated, or the path of a driver library",
                 .help = "The CUDA driver; emulated: one over host memory, for machines without a GPU.",
                 .print = [](const DriverOptions& options) { return options.driver; }},
                &DriverOptions::driver, parse_driver);
}

Option<DriverOptions> call_times_option() {
  return switch_option({.name = "call_times",
                        .help = "Writes to stderr at the end how often vmem's threads called which functions of the "
                                "driver, and how long these took."},
                       &DriverOptions::call_times);
}

}  // namespace

std::vector<Option<DriverOptions>> driver_options() { return {devices_option(), driver_option(), call_times_option()}; }

}  // namespace vmem
