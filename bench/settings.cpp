#include "bench/settings.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "base/sizes.hpp"
#include "bench/gpu.hpp"
#include "bench/machine.hpp"
#include "bench/remote_pages.hpp"
#include "runtime/options/options.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kGranule = std::uint64_t{2} << 20;
constexpr std::uint64_t kDefaultHbm = std::uint64_t{4} << 30;
constexpr std::uint64_t kDefaultHbmEmulated = std::uint64_t{64} << 20;
constexpr std::uint64_t kLeastHost = std::uint64_t{64} << 20;
// Pages in transit and the runtime's small allocations.
constexpr std::uint64_t kHostSlack = std::uint64_t{256} << 20;

// Host memory through which pages of mapped files pass.
constexpr std::uint64_t kMappedHost = std::uint64_t{1} << 30;
constexpr std::uint64_t kMappedHostEmulated = std::uint64_t{64} << 20;

std::uint64_t round_down(double bytes) { return static_cast<std::uint64_t>(bytes) / kGranule * kGranule; }
std::uint64_t round_up(std::uint64_t bytes) { return (bytes + kGranule - 1) / kGranule * kGranule; }

std::unexpected<Error> bad(std::string message) { return fail(VMEM_ERROR_INVALID_OPTION, std::move(message)); }

Status check_hbm(const Sizes& sizes, const Gpu& gpu) {
  if (sizes.hbm_bytes < kGranule)
    return bad(fmt::format("an HBM budget of {} is less than one 2 MiB page; raise --hbm or lower --ratio",
                           format_bytes(sizes.hbm_bytes)));
  if (sizes.hbm_bytes <= gpu.free_bytes()) return {};
  return bad(fmt::format("an HBM budget of {}: device {} ({}) has {}, of which {} are free; give a lower --hbm",
                         format_bytes(sizes.hbm_bytes), gpu.ordinal(), gpu.name(), format_bytes(gpu.total_bytes()),
                         format_bytes(gpu.free_bytes())));
}

// Only what is there: nobody looks for the fault in an option that was not given.
std::string rooms_in_words(const Sizes& sizes) {
  const std::pair<const char*, std::uint64_t> rooms[]{{"HBM", sizes.hbm_bytes},
                                                      {"other GPUs (--peers)", sizes.peer_bytes},
                                                      {"host memory", sizes.host_bytes},
                                                      {"other nodes (--remote)", sizes.remote_bytes},
                                                      {"files (--nvme)", sizes.nvme_bytes}};
  std::string words;
  for (const auto& [name, bytes] : rooms) {
    if (bytes != 0) words += fmt::format("{}{} {}", words.empty() ? "" : ", ", name, format_bytes(bytes));
  }
  return words;
}

Status check_host(const Sizes& sizes) {
  const std::uint64_t room =
      sizes.hbm_bytes + sizes.peer_bytes + sizes.host_bytes + sizes.remote_bytes + sizes.nvme_bytes;
  if (sizes.working_set_bytes > room)
    return bad(fmt::format(
        "a working set of {} does not fit: {} hold {} together; raise --host, --peers or --nvme, {}or lower "
        "--working-set or --ratio",
        format_bytes(sizes.working_set_bytes), rooms_in_words(sizes), format_bytes(room),
        sizes.remote_bytes == 0 ? "" : "let the nodes of --remote lend more, "));
  const std::uint64_t available = read_machine().memory_available_bytes;
  if (sizes.host_bytes <= available) return {};
  return bad(
      fmt::format("the host pool would take {}, but {} of host memory are available; lower --host, --hbm or --ratio",
                  format_bytes(sizes.host_bytes), format_bytes(available)));
}

// Over a chain below it, host memory defaults to the size of HBM.
std::uint64_t chain_host_bytes(const Settings& settings, std::uint64_t hbm_bytes) {
  return settings.host_bytes.value_or(std::max(hbm_bytes, kLeastHost));
}

// As in the runtime, a directory without a size counts with half of its free space.
Result<std::uint64_t> nvme_bytes(const Settings& settings) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"nvme"}));
  std::uint64_t bytes = 0;
  for (const StoreDirectory& each : options.nvme) {
    struct statvfs room{};
    const bool known = ::statvfs(each.path.c_str(), &room) == 0;
    bytes += each.bytes.value_or(known ? std::uint64_t{room.f_bavail} * room.f_frsize / 2 : 0);
  }
  return bytes;
}

// A lender without a size counts with all its device memory. Memory lent by another process does
// not count.
Result<std::uint64_t> peer_bytes(const Settings& settings, const Gpu& gpu) {
  VMEM_ASSIGN(const Options options, options_named(settings, {"peers"}));
  std::uint64_t bytes = 0;
  for (const PeerSpec& each : options.peers) {
    if (!each.socket.empty()) continue;
    std::size_t all = 0;
    if (!each.bytes) BENCH_CALL(gpu, cuDeviceTotalMem, &all, each.device);
    bytes += each.bytes.value_or(all);
  }
  return bytes;
}

// Adds the room on other nodes and in files.
Status add_room_below(Sizes& sizes, const Settings& settings) {
  VMEM_ASSIGN(sizes.nvme_bytes, nvme_bytes(settings));
  VMEM_ASSIGN(sizes.remote_bytes, remote_bytes(settings));
  return {};
}
bool has_chain(const Sizes& sizes) { return sizes.nvme_bytes + sizes.remote_bytes != 0; }

// REQUIRES: add_room_below.
Result<Sizes> finish(Sizes sizes, const Settings& settings, const Gpu& gpu) {
  sizes.ratio = static_cast<double>(sizes.working_set_bytes) / static_cast<double>(std::max(sizes.hbm_bytes, kGranule));
  VMEM_ASSIGN(sizes.peer_bytes, peer_bytes(settings, gpu));
  const std::uint64_t elsewhere = std::min(sizes.peer_bytes, sizes.working_set_bytes);
  const std::uint64_t rest = round_up(sizes.working_set_bytes - elsewhere + kHostSlack);
  sizes.host_bytes =
      has_chain(sizes) ? chain_host_bytes(settings, sizes.hbm_bytes) : settings.host_bytes.value_or(rest);
  VMEM_TRY(check_hbm(sizes, gpu));
  VMEM_TRY(check_host(sizes));
  return sizes;
}

Result<double> checked_ratio(const Settings& settings, double default_ratio) {
  const double ratio = settings.ratio.value_or(default_ratio);
  if (std::isfinite(ratio) && ratio > 0 && ratio <= 1e6) return ratio;
  return bad(fmt::format("--ratio {} is not a ratio of working set to HBM; give a number above 0, such as 4", ratio));
}

}  // namespace

Status check_host_memory(std::string_view scenario, std::uint64_t needed_bytes) {
  const std::uint64_t available = read_machine().memory_available_bytes;
  if (needed_bytes <= available) return {};
  return bad(fmt::format("{} needs {} of host memory, and {} are available; lower --working-set", scenario,
                         format_bytes(needed_bytes), format_bytes(available)));
}

Result<Options> options_named(const Settings& settings, std::initializer_list<std::string_view> names) {
  Options options;
  for (const std::string_view name : names) {
    const OptionDefinition& option = *std::ranges::find(option_table(), name, &OptionDefinition::name);
    const auto given = std::ranges::find(settings.runtime_options, name, &std::pair<std::string, std::string>::first);
    const bool here = given != settings.runtime_options.end();
    const auto value = here ? std::optional(given->second) : option_in_environment(option);
    if (!value) continue;
    if (const Status parsed = option.parse(options, *value); !parsed)
      return bad(
          fmt::format("{} (from {})", parsed.error().message, here ? option_flag(option) : option_environment(option)));
  }
  return options;
}

Result<Sizes> plan_sizes(const Settings& settings, const Gpu& gpu, double default_ratio) {
  if (settings.working_set_bytes) return plan_sizes_for(*settings.working_set_bytes, settings, gpu, default_ratio);
  VMEM_ASSIGN(const double ratio, checked_ratio(settings, default_ratio));
  Sizes sizes;
  sizes.hbm_bytes = settings.hbm_bytes.value_or(gpu.emulated() ? kDefaultHbmEmulated : kDefaultHbm);
  VMEM_TRY(add_room_below(sizes, settings));
  // Over a chain the ratio applies to HBM and host memory together.
  const std::uint64_t chained = !has_chain(sizes) ? 0 : chain_host_bytes(settings, sizes.hbm_bytes);
  const double working_set = static_cast<double>(sizes.hbm_bytes + chained) * ratio;
  if (working_set > 0x1p60)
    return bad(fmt::format("--ratio {} of an HBM budget of {} is beyond any address space; lower --ratio", ratio,
                           format_bytes(sizes.hbm_bytes)));
  sizes.working_set_bytes = std::max(round_down(working_set), kGranule);
  return finish(sizes, settings, gpu);
}

Result<Sizes> plan_sizes_for(std::uint64_t working_set_bytes, const Settings& settings, const Gpu& gpu,
                             double default_ratio) {
  if (working_set_bytes == 0) return bad("a working set of 0 bytes was asked for; give at least 2MiB");
  if (working_set_bytes > std::uint64_t{1} << 60)
    return bad(fmt::format("a working set of {} is beyond any address space", format_bytes(working_set_bytes)));
  if (settings.hbm_bytes && settings.ratio)
    return bad("the working set, --hbm and --ratio contradict each other: two of them give the third; leave one out");
  VMEM_ASSIGN(const double ratio, checked_ratio(settings, default_ratio));
  Sizes sizes;
  VMEM_TRY(add_room_below(sizes, settings));
  sizes.working_set_bytes = round_up(working_set_bytes);
  const double hbm = std::min(static_cast<double>(sizes.working_set_bytes) / ratio, 0x1p60);
  sizes.hbm_bytes = settings.hbm_bytes.value_or(std::max(round_down(hbm), kGranule));
  return finish(sizes, settings, gpu);
}

Result<Sizes> plan_mapped_sizes(const Settings& settings, const Gpu& gpu, double default_ratio) {
  VMEM_ASSIGN(const double ratio, checked_ratio(settings, default_ratio));
  Sizes sizes;
  sizes.hbm_bytes = settings.hbm_bytes.value_or(gpu.emulated() ? kDefaultHbmEmulated : kDefaultHbm);
  if (settings.working_set_bytes && !settings.hbm_bytes && settings.ratio)
    sizes.hbm_bytes = std::max(round_down(static_cast<double>(*settings.working_set_bytes) / ratio), kGranule);
  const double wanted = static_cast<double>(sizes.hbm_bytes) * ratio;
  if (!settings.working_set_bytes && wanted > 0x1p60)
    return bad(fmt::format("--ratio {} of an HBM budget of {} is beyond any address space; lower --ratio", ratio,
                           format_bytes(sizes.hbm_bytes)));
  sizes.working_set_bytes =
      settings.working_set_bytes ? round_up(*settings.working_set_bytes) : std::max(round_down(wanted), kGranule);
  sizes.ratio = static_cast<double>(sizes.working_set_bytes) / static_cast<double>(sizes.hbm_bytes);
  sizes.host_bytes = settings.host_bytes.value_or(gpu.emulated() ? kMappedHostEmulated : kMappedHost);
  VMEM_TRY(check_hbm(sizes, gpu));
  return sizes;
}

}  // namespace vmem::bench
