#include "rdma/remote_options.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/option_parse.hpp"
#include "base/sizes.hpp"

namespace vmem {
namespace {

constexpr std::uint64_t kMiB = 1ull << 20;
constexpr std::uint64_t kTiB = 1ull << 40;
// A shorter lease ends while a busy machine schedules the renewal, or etcd elects a leader.
constexpr std::uint64_t kLeastLeaseS = 5;

Result<std::vector<std::string>> parse_remote(std::string_view text) {
  std::vector<std::string> addresses;
  if (text == "off") return addresses;
  for (const std::string_view part : split_at_commas(text)) {
    const std::size_t colon = part.rfind(':');
    if (colon == std::string_view::npos || colon == 0 || colon + 1 == part.size())
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is not HOST:PORT", part));
    if (std::ranges::find(addresses, part) != addresses.end())
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} is named twice", part));
    addresses.emplace_back(part);
  }
  return addresses;
}

// "ucx:mlx5_0:1,mlx5_1:1": the devices, by UCX's names.
Result<std::string> parse_fabric(std::string_view text) {
  constexpr std::string_view kPrefix = "ucx:";
  if (text == "off") return std::string();
  if (!text.starts_with(kPrefix) || text.size() == kPrefix.size())
    return fail(VMEM_ERROR_INVALID_OPTION, "neither off nor ucx: and devices");
  return std::string(text.substr(kPrefix.size()));
}

Option<RemoteOptions> remote_option() {
  return define({.name = "remote",
                 .values = "off, or addresses such as 10.0.0.1:7000,10.0.0.2:7000",
                 .help = "Where pages go that host memory has no room for: other nodes, on which `vmem daemon` runs.",
                 .print =
                     [](const RemoteOptions& options) {
                       return options.remote.empty() ? "off" : fmt::format("{}", fmt::join(options.remote, ","));
                     }},
                &RemoteOptions::remote, parse_remote);
}

// The address itself is checked when the registry is opened.
Option<RemoteOptions> cluster_option() {
  return define(
      {.name = "cluster",
       .values = "off, or etcd://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]/NAME (etcds:// for TLS)",
       .help = "The cluster to take part in, by its registry: pages go to the daemons that are members, "
               "also to those that join later.",
       .print = [](const RemoteOptions& options) { return options.cluster.empty() ? "off" : options.cluster; }},
      &RemoteOptions::cluster, [](std::string_view text) -> Result<std::string> {
        if (text == "off") return std::string();
        // As by a command that printed no address.
        if (text.empty())
          return fail(
              VMEM_ERROR_INVALID_OPTION,
              "empty: unset VMEM_CLUSTER, or set it to off or to a cluster's address, which `vmem cluster status "
              "--address` prints of one that `vmem cluster up` has started");
        if (text.starts_with("etcd://") || text.starts_with("etcds://")) return std::string(text);
        return fail(VMEM_ERROR_INVALID_OPTION, "neither off nor an address that begins with etcd:// or etcds://");
      });
}

Option<RemoteOptions> advertise_option() {
  return define(
      {.name = "advertise",
       .values = "auto, or an address of this machine such as 10.0.0.7:0",
       .only_with = "cluster",
       .help = "Where this program listens for the cluster's other nodes, which fetch pages of published regions from "
               "it. Port 0: any that is free; auto: the address from which the registry is reached; without secret "
               "and certificates 127.0.0.1.",
       .print = [](const RemoteOptions& options) { return options.advertise.empty() ? "auto" : options.advertise; }},
      &RemoteOptions::advertise, [](std::string_view text) -> Result<std::string> {
        if (text == "auto") return std::string();
        const std::size_t colon = text.rfind(':');
        if (colon == std::string_view::npos || colon == 0 || colon + 1 == text.size())
          return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("'{}' is not HOST:PORT", text));
        return std::string(text);
      });
}

Option<RemoteOptions> node_lease_option() {
  return define(
      {.name = "node_lease",
       .values = fmt::format("a duration of whole seconds from {}s to an hour", kLeastLeaseS),
       .only_with = "cluster",
       .help = "After this time without word of this node its registry takes it for gone, if nobody has seen it end. "
               "The node itself stops acting as a member shortly before.",
       .print = [](const RemoteOptions& options) { return fmt::format("{}s", options.node_lease_s); }},
      &RemoteOptions::node_lease_s, [](std::string_view text) -> Result<std::uint32_t> {
        VMEM_ASSIGN(const std::uint64_t us, parse_wait(text));
        constexpr std::uint64_t kSecondUs = 1'000'000;
        if (us % kSecondUs != 0) return fail(VMEM_ERROR_INVALID_OPTION, "not whole seconds");
        if (us < kLeastLeaseS * kSecondUs) return fail(VMEM_ERROR_INVALID_OPTION, "too short to be renewed in time");
        return static_cast<std::uint32_t>(us / kSecondUs);
      });
}

Option<RemoteOptions> borrow_option() {
  return automatic_size_option(
      {.name = "borrow",
       .values = "auto, or a size from 16MiB such as 64GiB",
       .only_with = "remote or cluster",
       .help = "The most that is borrowed of each node's memory, HBM and disks; auto: what the program needs."},
      &RemoteOptions::borrow_bytes, {.least = 16 * kMiB, .most = 4096 * kTiB});
}

Option<RemoteOptions> replicas_option() {
  return define({.name = "replicas",
                 .values = "1 or 2",
                 .only_with = "remote or cluster",
                 .help = "How many nodes each page goes to: 2 survive the death of one.",
                 .print = [](const RemoteOptions& options) { return fmt::to_string(options.replicas); }},
                &RemoteOptions::replicas, [](std::string_view text) -> Result<std::uint32_t> {
                  if (text == "1" || text == "2") return text == "1" ? 1u : 2u;
                  return fail(VMEM_ERROR_INVALID_OPTION, "neither 1 nor 2");
                });
}

Option<RemoteOptions> remote_wait_option() {
  return define(
      {.name = "remote_wait",
       .values = "a duration from 100ms to an hour such as 5s",
       .only_with = "remote or cluster",
       .help =
           "How long a page whose only copy is on a node that does not answer is waited for. Then the call fails with "
           "TIMEOUT, and the page is kept.",
       .print = [](const RemoteOptions& options) { return exact_duration_us(options.remote_wait_us); }},
      &RemoteOptions::remote_wait_us, parse_long_wait);
}

Option<RemoteOptions> remote_encrypt_option() {
  return switch_option(
      {.name = "remote_encrypt",
       .help = "Encrypts pages with a key that only this process has before they go to other nodes, "
               "so that these cannot read them; only with remote or cluster. Takes a copy of each page."},
      &RemoteOptions::remote_encrypt);
}

Option<RemoteOptions> remote_channels_option() {
  return define(
      {.name = "remote_channels",
       .values = fmt::format("auto, or 1 to {}", kMostRemoteChannels),
       .only_with = "remote or cluster",
       .help = "Connections to each node that pages go over, from two on each with a thread; auto: by the number "
               "of processors. The smaller of the two nodes' numbers counts.",
       .print =
           [](const RemoteOptions& options) {
             return options.remote_channels ? fmt::to_string(*options.remote_channels) : "auto";
           }},
      &RemoteOptions::remote_channels, [](std::string_view text) -> Result<std::optional<std::uint32_t>> {
        if (text == "auto") return std::nullopt;
        VMEM_ASSIGN(const std::uint64_t channels, parse_count(text, kMostRemoteChannels));
        if (channels == 0) return fail(VMEM_ERROR_INVALID_OPTION, "none");
        return static_cast<std::uint32_t>(channels);
      });
}

Option<RemoteOptions> secret_option() {
  return define(
      {.name = "secret",
       .values = "off, or a file of `vmem secret new`",
       .only_with = "remote or cluster",
       .help = "Secrets that the nodes share, and prove to each other; without them, or certificates, the nodes "
               "must be on this machine.",
       .print = [](const RemoteOptions& options) { return options.secret.empty() ? "off" : options.secret; }},
      &RemoteOptions::secret, [](std::string_view text) -> Result<std::string> {
        if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a file without a name");
        return std::string(text == "off" ? "" : text);
      });
}

Option<RemoteOptions> certificates_option() {
  return define(
      {.name = "certificates",
       .values = "off, or a folder with ca.crt, tls.crt and tls.key",
       .only_with = "remote or cluster, and without secret",
       .help = "Certificates instead of secrets: this node's, its key, and the authority that signs those of others.",
       .print =
           [](const RemoteOptions& options) { return options.certificates.empty() ? "off" : options.certificates; }},
      &RemoteOptions::certificates, [](std::string_view text) -> Result<std::string> {
        if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "a folder without a name");
        return std::string(text == "off" ? "" : text);
      });
}

Option<RemoteOptions> fabric_option() {
  return define(
      {.name = "fabric",
       .values = "off, or ucx:DEVICES such as ucx:mlx5_0:1,mlx5_1:1 (`ucx_info -d` lists them)",
       .only_with = "remote or cluster",
       .help = "RDMA devices that carry pages instead of TLS. Neither authenticated nor encrypted there: whoever is "
               "on that fabric can read and change lent memory (SECURITY.md).",
       .print = [](const RemoteOptions& options) { return options.fabric.empty() ? "off" : "ucx:" + options.fabric; }},
      &RemoteOptions::fabric, parse_fabric);
}

}  // namespace

std::vector<Option<RemoteOptions>> remote_options() {
  return {remote_option(),          cluster_option(),  advertise_option(),    node_lease_option(),
          borrow_option(),          replicas_option(), remote_wait_option(),  remote_encrypt_option(),
          remote_channels_option(), secret_option(),   certificates_option(), fabric_option()};
}

}  // namespace vmem
