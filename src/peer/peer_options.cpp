#include "peer/peer_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/option_parse.hpp"
#include "base/sizes.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kTiB = 1ull << 40;
constexpr int kLargestDevice = 255;

// DEVICE or DEVICE:SIZE, or the same with a socket's path.
Result<std::vector<PeerSpec>> parse_peers(std::string_view text) {
  std::vector<PeerSpec> devices;
  if (text == "off") return devices;
  for (const std::string_view part : split_at_commas(text)) {
    const std::size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    PeerSpec lender{.device = -1};
    if (name.starts_with('/')) {
      lender.socket = name;
    } else {
      VMEM_ASSIGN(const std::uint64_t device, parse_count(name, kLargestDevice));
      lender.device = int(device);
    }
    if (colon != std::string_view::npos) {
      VMEM_ASSIGN(lender.bytes, parse_size(part.substr(colon + 1), {.least = kSmallestLent, .most = 64 * kTiB}));
    }
    const auto same = [&](const PeerSpec& other) {
      return other.device == lender.device && other.socket == lender.socket;
    };
    if (std::ranges::any_of(devices, same))
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("device {} is named twice", name));
    devices.push_back(lender);
  }
  return devices;
}

std::string print_peers(const PeerOptions& options) {
  std::vector<std::string> texts;
  for (const PeerSpec& each : options.peers) {
    const std::string name = each.socket.empty() ? fmt::format("{}", each.device) : each.socket;
    texts.push_back(each.bytes ? fmt::format("{}:{}", name, exact_bytes(*each.bytes)) : name);
  }
  return texts.empty() ? "off" : fmt::format("{}", fmt::join(texts, ","));
}

// DEVICE:PATH or DEVICE:SIZE:PATH.
Result<std::vector<LendSpec>> parse_lend(std::string_view text) {
  std::vector<LendSpec> devices;
  if (text == "off") return devices;
  for (const std::string_view part : split_at_commas(text)) {
    const std::size_t path = part.find(":/"), colon = part.find(':');
    if (path == std::string_view::npos)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' does not end with the path of a socket, /...", part));
    LendSpec lent;
    lent.socket = part.substr(path + 1);
    VMEM_ASSIGN(const std::uint64_t device, parse_count(part.substr(0, colon), kLargestDevice));
    lent.device = int(device);
    if (colon != path) {
      VMEM_ASSIGN(lent.bytes,
                  parse_size(part.substr(colon + 1, path - colon - 1), {.least = kSmallestLent, .most = 64 * kTiB}));
    }
    if (std::ranges::find(devices, lent.device, &LendSpec::device) != devices.end())
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("device {} is named twice", lent.device));
    devices.push_back(lent);
  }
  return devices;
}

std::string print_lend(const PeerOptions& options) {
  std::vector<std::string> texts;
  for (const LendSpec& each : options.lend)
    texts.push_back(each.bytes ? fmt::format("{}:{}:{}", each.device, exact_bytes(*each.bytes), each.socket)
                               : fmt::format("{}:{}", each.device, each.socket));
  return texts.empty() ? "off" : fmt::format("{}", fmt::join(texts, ","));
}

Option<PeerOptions> peers_option() {
  return define({.name = "peers",
                 .values = "off, or GPUs such as 1:40GiB,2, each with the most that it lends or with all that it has "
                           "left; or the path of "
                           "the socket where another process lends one (see lend)",
                 .help = "GPUs whose memory takes pages of the others' before host memory does, over NVLink or PCIe.",
                 .print = print_peers},
                &PeerOptions::peers, parse_peers);
}

Option<PeerOptions> lend_option() {
  return define(
      {.name = "lend",
       .values = "off, or GPUs such as 0:20GiB:/run/user/1000/gpu0, each with the most to lend, or without, and a "
                 "socket's path",
       .help =
           "What this process's GPUs have left, to other processes of the same user (see peers), until it is needed.",
       .print = print_lend},
      &PeerOptions::lend, parse_lend);
}

}  // namespace

std::vector<Option<PeerOptions>> peer_options() { return {peers_option(), lend_option()}; }

}  // namespace vmem
