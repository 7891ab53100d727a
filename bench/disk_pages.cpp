#include "bench/disk_pages.hpp"

#include <fmt/format.h>

#include <utility>

#include "bench/paced_queue.hpp"
#include "tiers/disk/uring_queue.hpp"

namespace vmem::bench {

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
