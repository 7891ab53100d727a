#include "gpu/emu/config.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

namespace vmem::emu {
namespace {

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || !(value >= 0) || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const std::size_t digits = text.find_first_not_of("0123456789.");
  const auto number = parse_number(text.substr(0, digits));
  if (!number) return std::nullopt;
  const std::string_view unit = digits == std::string_view::npos ? "" : text.substr(digits);
  static constexpr std::pair<std::string_view, double> units[] = {
      {"", 1},           {"B", 1},           {"K", 1024.},         {"KiB", 1024.},        {"M", 1048576.},
      {"MiB", 1048576.}, {"G", 1073741824.}, {"GiB", 1073741824.}, {"T", 1099511627776.}, {"TiB", 1099511627776.}};
  for (const auto& [name, factor] : units)
    if (unit == name) {
      // No address space holds more than 2^46 bytes.
      const double bytes = *number * factor;
      if (bytes > 0x1p46) return std::nullopt;
      return static_cast<std::uint64_t>(bytes);
    }
  return std::nullopt;
}

bool set_whole(std::string_view value, int min, int max, int& out) {
  const auto number = parse_number(value);
  if (!number || *number != std::floor(*number) || *number < min || *number > max) return false;
  out = static_cast<int>(*number);
  return true;
}

bool set_bool(std::string_view value, bool& out) {
  if (value != "0" && value != "1") return false;
  out = value == "1";
  return true;
}

bool set_number(std::string_view value, double& out) {
  const auto number = parse_number(value);
  if (!number) return false;
  out = *number;
  return true;
}

bool set_size(std::string_view value, std::uint64_t& out) {
  const auto size = parse_size(value);
  if (!size || *size < granule_bytes || *size % granule_bytes != 0) return false;
  out = *size;
  return true;
}

bool set_cufile(std::string_view value, CuFileMode& out) {
  static constexpr std::pair<std::string_view, CuFileMode> modes[] = {
      {"none", CuFileMode::none}, {"compat", CuFileMode::compat}, {"direct", CuFileMode::direct}};
  for (const auto& [name, mode] : modes)
    if (value == name) {
      out = mode;
      return true;
    }
  return false;
}

// "RATE", or "I-J:RATE" where 0 disconnects the pair.
bool set_p2p(std::string_view value, Config& config) {
  const std::size_t dash = value.find('-'), colon = value.find(':');
  if (colon == std::string_view::npos) return set_number(value, config.p2p_gbps);
  int a = 0, b = 0;
  double rate = 0;
  if (dash == std::string_view::npos || dash > colon) return false;
  if (!set_whole(value.substr(0, dash), 0, device_count_max - 1, a)) return false;
  if (!set_whole(value.substr(dash + 1, colon - dash - 1), 0, device_count_max - 1, b) || a == b) return false;
  if (!set_number(value.substr(colon + 1), rate)) return false;
  config.peer_links[std::minmax(a, b)] = PeerLink{rate > 0, rate};
  return true;
}

// "I:NODE"
bool set_near(std::string_view value, Config& config) {
  const std::size_t colon = value.find(':');
  int device = 0, node = 0;
  if (colon == std::string_view::npos || !set_whole(value.substr(0, colon), 0, device_count_max - 1, device) ||
      !set_whole(value.substr(colon + 1), 0, numa_count_max - 1, node))
    return false;
  config.device_nodes[device] = node;
  return true;
}

// "I+J+K:RATE". A device can be below one switch only.
bool set_switch(std::string_view value, Config& config) {
  const std::size_t colon = value.find(':');
  PcieSwitch added;
  if (colon == std::string_view::npos || !set_number(value.substr(colon + 1), added.gbps)) return false;
  for (std::string_view rest = value.substr(0, colon); !rest.empty();) {
    const std::string_view item = rest.substr(0, rest.find('+'));
    rest.remove_prefix(std::min(rest.size(), item.size() + 1));
    int device = 0;
    if (!set_whole(item, 0, device_count_max - 1, device) || config.pcie_switch(device) >= 0 ||
        std::ranges::find(added.devices, device) != added.devices.end())
      return false;
    added.devices.push_back(device);
  }
  if (added.devices.empty()) return false;
  config.pcie_switches.push_back(std::move(added));
  return true;
}

enum class Outcome { ok, unknown, bad };

Outcome set_key(std::string_view key, std::string_view value, Config& config) {
  const auto outcome = [](bool ok) { return ok ? Outcome::ok : Outcome::bad; };
  if (key == "devices") return outcome(set_whole(value, 1, device_count_max, config.devices));
  if (key == "hbm") return outcome(set_size(value, config.hbm_bytes));
  if (key == "host") return outcome(set_size(value, config.host_bytes));
  if (key == "numa") return outcome(set_whole(value, 1, numa_count_max, config.numa_nodes));
  if (key == "h2d") return outcome(set_number(value, config.h2d_gbps));
  if (key == "d2h") return outcome(set_number(value, config.d2h_gbps));
  if (key == "p2p") return outcome(set_p2p(value, config));
  if (key == "nvlink") return outcome(set_bool(value, config.nvlink));
  if (key == "switch") return outcome(set_switch(value, config));
  if (key == "near") return outcome(set_near(value, config));
  if (key == "socket") return outcome(set_number(value, config.socket_gbps));
  if (key == "nvml") return outcome(set_bool(value, config.nvml));
  if (key == "cufile") return outcome(set_cufile(value, config.cufile));
  if (key == "duplex") return outcome(set_number(value, config.duplex_gbps));
  if (key == "copy_us") return outcome(set_number(value, config.copy_us));
  if (key == "workers") return outcome(set_bool(value, config.workers));
  if (key == "vmm") return outcome(set_bool(value, config.vmm));
  if (key == "host_vmm") return outcome(set_bool(value, config.host_vmm));
  if (key == "check_host_access") return outcome(set_bool(value, config.check_host_access));
  if (key == "version") return outcome(set_whole(value, 12000, 99999, config.version));
  return Outcome::unknown;
}

}  // namespace

PeerLink Config::peer_link(int a, int b) const {
  const auto found = peer_links.find(std::minmax(a, b));
  return found != peer_links.end() ? found->second : PeerLink{true, p2p_gbps};
}

int Config::numa_node(int device) const {
  const auto found = device_nodes.find(device);
  return found != device_nodes.end() ? std::min(found->second, numa_nodes - 1) : device * numa_nodes / devices;
}

int Config::pcie_switch(int device) const {
  for (std::size_t i = 0; i < pcie_switches.size(); ++i)
    if (std::ranges::find(pcie_switches[i].devices, device) != pcie_switches[i].devices.end())
      return static_cast<int>(i);
  return -1;
}

bool parse_config(std::string_view spec, Config& config, std::string& error) {
  Config result = config;
  while (!spec.empty()) {
    const std::string_view item = spec.substr(0, spec.find(','));
    spec.remove_prefix(std::min(spec.size(), item.size() + 1));
    if (item.empty()) continue;
    const std::size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : item.substr(equals + 1);
    switch (set_key(key, value, result)) {
      case Outcome::ok:
        break;
      case Outcome::unknown:
        error = "emulated driver: there is no setting '" + std::string(key) +
                "'; there are devices, hbm, host, numa, h2d, d2h, p2p, nvlink, switch, near, socket, nvml, cufile, "
                "duplex, copy_us, workers, vmm, host_vmm, check_host_access and version; `vmem options --emulated` "
                "explains them";
        return false;
      case Outcome::bad:
        error =
            "emulated driver: '" + std::string(value) + "' is not a value of '" + std::string(key) +
            "'; sizes are multiples of 2MiB such as 8GiB, rates GB/s, switches 0 or 1, cufile none, compat or direct";
        return false;
    }
  }
  config = result;
  return true;
}

}  // namespace vmem::emu
