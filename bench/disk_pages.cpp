#include "bench/disk_pages.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/sizes.hpp"
#include "bench/paced_queue.hpp"
#include "tiers/io/uring_queue.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kSlackPart = 16;

}  // namespace

Result<Options> disk_options(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& option : settings.runtime_options) {
    if (option.first == "nvme" || option.first == "nvme_poll") given.push_back(option);
  }
  VMEM_ASSIGN(Options options, resolve_options(given));
  if (options.nvme.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} needs a disk; name a directory on it with --nvme DIR:SIZE", settings.scenario));
  return options;
}

Status check_disk_room(std::string_view scenario, std::span<const StoreDirectory> directories, DiskNeed need) {
  std::uint64_t given = 0, free = 0;
  for (const StoreDirectory& each : directories) {
    struct statvfs room{};
    if (::statvfs(each.path.c_str(), &room) != 0)
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("--nvme {}: {}", each.path, std::strerror(errno)), errno);
    const std::uint64_t available = std::uint64_t{room.f_bavail} * room.f_frsize;
    free += available;
    given += each.bytes.value_or(available / 2);
  }
  const std::uint64_t advised = (need.tier + need.tier / kSlackPart) >> 20;  // slots have headers
  if (given < need.tier)
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} stores {} in --nvme, which is to take {}; give it {}MiB, or lower --working-set",
                            scenario, format_bytes(need.tier), format_bytes(given), advised));
  if (free < need.tier + need.beside)
    return fail(
        VMEM_ERROR_INVALID_OPTION,
        fmt::format("{} writes {} to the file system of --nvme {}, where {} are free; lower --working-set", scenario,
                    format_bytes(need.tier + need.beside), directories.front().path, format_bytes(free)));
  return {};
}

Result<std::unique_ptr<DiskPages>> DiskPages::create(const Config& config) {
  std::unique_ptr<DiskPages> pages(new DiskPages);
  tiers::DiskTier::Config tier;
  tier.directories = config.directories;
  tier.make_queue = [&](const std::vector<int>& files) -> Result<std::unique_ptr<tiers::IoQueue>> {
    VMEM_ASSIGN(auto queue, tiers::make_uring_queue({.files = files, .poll = config.poll}));
    if (!config.disk_bytes_s) return queue;
    return std::make_unique<PacedQueue>(std::move(queue), *config.disk_bytes_s);
  };
  tier.workers = tiers::DiskTier::default_workers();
  VMEM_ASSIGN(tier.compression, tiers::compression_config(config.compress));
  tier.on_ready = [self = pages.get()] { self->note_ready(); };
  VMEM_ASSIGN(pages->tier_, tiers::DiskTier::create(std::move(tier)));
  VMEM_TRY(pages->take_slots(*pages->tier_, config.page_bytes, config.pages, "--nvme"));
  return pages;
}

}  // namespace vmem::bench
