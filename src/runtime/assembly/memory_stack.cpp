#include "runtime/assembly/memory_stack.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/log.hpp"
#include "base/sizes.hpp"
#include "gpu/memory_location.hpp"
#include "runtime/assembly/machine.hpp"
#include "tiers/io/thread_queue.hpp"
#include "topology/placement.hpp"

namespace vmem::runtime {
namespace {

constexpr std::uint32_t kDiskDepth = 64;  // requests of 1 MiB in flight

Result<std::uint64_t> host_budget(const Options& options) {
  const std::uint64_t available = available_host_bytes();
  const std::uint64_t budget = whole_granules(options.host_bytes.value_or(available / 2));
  if (options.host_bytes && *options.host_bytes > total_host_bytes()) {
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("--host {} asked for, the machine has {} in all ({} available now)", format_bytes(budget),
                            format_bytes(total_host_bytes()), format_bytes(available)));
  }
  if (budget < kSmallestHost) {
    return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("a host budget of {} is too small; {} is the least",
                                                       format_bytes(budget), format_bytes(kSmallestHost)));
  }
  return budget;
}

template <class Config>
void add_devices(const Devices& devices, Config& config) {
  for (const auto& device : devices) config.devices.push_back({device->context, device->handle});
}

void add_compression(const tiers::CompressionCounters& counters, vmem_statistics& out) {
  out.nvme_compressed_bytes = counters.in_bytes;
  out.nvme_compressed_to_bytes = counters.out_bytes;
  out.nvme_compress_us = (counters.compress_ns + counters.sample_ns) / 1000;
  out.nvme_decompress_us = counters.decompress_ns / 1000;
  out.nvme_pages_fill = counters.pages[std::size_t(compress::kFill)];
  for (const compress::Codec* codec : compress::all_codecs()) {
    const std::uint64_t pages = counters.pages[std::size_t(codec->id())];
    const std::string_view name = codec->name();
    if (codec->id() == compress::kNone) {
      out.nvme_pages_as_is += pages;
    } else if (name.starts_with("shuffle")) {
      out.nvme_pages_shuffled += pages;
    } else {
      (name.starts_with("lz4") ? out.nvme_pages_lz4 : out.nvme_pages_zstd) += pages;
    }
  }
}

}  // namespace

Result<std::unique_ptr<MemoryStack>> MemoryStack::start(const Options& options,
                                                        std::shared_ptr<const gpu::Driver> driver,
                                                        const Devices& devices, const topology::Topology& topology,
                                                        std::function<void()> wake) {
  std::unique_ptr<MemoryStack> stack(new MemoryStack(options, std::move(driver), std::move(wake)));
  VMEM_TRY(stack->start_host(devices, topology));
  VMEM_TRY(stack->start_gds(devices));
  VMEM_TRY(stack->start_disk());
  VMEM_TRY(stack->start_remote());
  stack->start_copies();
  stack->start_files();
  return stack;
}

Status MemoryStack::start_host(const Devices& devices, const topology::Topology& topology) {
  const auto& driver = *driver_;
  int supported = 0;
  VMEM_TRY(driver.check(
      driver->cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                   devices.front().handle),
      "cuDeviceGetAttribute"));
  if (supported == 0) {
    return fail(VMEM_ERROR_UNSUPPORTED,
                "the driver cannot make host memory handles (HOST_NUMA virtual memory management); see `vmem doctor`");
  }
  std::vector<int> ordinals;
  for (const auto& device : devices) ordinals.push_back(device->ordinal);
  tiers::NearTier::Config config;
  config.driver = driver_;
  add_devices(devices, config);
  config.location = gpu::on_host(topology::host_node(topology, ordinals).value_or(0));
  config.name = "host";
  VMEM_ASSIGN(config.budget_bytes, host_budget(options_));
  config.on_ready = wake_;
  VMEM_ASSIGN(host_, tiers::NearTier::create(std::move(config)));
  return {};
}

// libcufile is loaded for the first file, unless the option demands it: then its absence fails the
// start.
Status MemoryStack::start_gds(const Devices& devices) {
  if (options_.gds == Gds::off) return {};
  tiers::GdsReader::Config config;
  config.driver = driver_;
  config.accept = options_.gds == Gds::on ? gpu::CuFile::Accept::any : gpu::CuFile::Accept::direct;
  add_devices(devices, config);
  gds_ = std::make_shared<tiers::GdsReader>(std::move(config));
  if (options_.gds != Gds::on) return {};
  const Status started = gds_->start();
  if (started || started.error().status != VMEM_ERROR_UNSUPPORTED) return started;
  return fail(VMEM_ERROR_INVALID_OPTION,
              fmt::format("--gds on: {}; give auto to go on without it", started.error().message));
}

Status MemoryStack::start_disk() {
  tiers::DiskTier::Config config;
  // Checked even without --nvme, so that a bad option fails the start.
  VMEM_ASSIGN(config.compression, tiers::compression_config(options_.compress));
  if (options_.nvme.empty()) return {};
  config.directories = options_.nvme;
  config.make_queue = [poll = options_.nvme_poll](const std::vector<int>& files) {
    return tiers::make_io_queue({.files = files, .depth = kDiskDepth, .poll = poll});
  };
  config.workers = tiers::DiskTier::default_workers();
  config.answer_wait = std::chrono::microseconds(options_.call_wait_us);
  config.frame_reader = gds_;
  config.on_ready = wake_;
  VMEM_ASSIGN(disk_, tiers::DiskTier::create(std::move(config)));
  VMEM_LOG_INFO("files for pages: {} in {} directories through {}", format_bytes(disk_->usage().budget_bytes),
                options_.nvme.size(), disk_->describe());
  return {};
}

Status MemoryStack::start_remote() {
  if (!options_.use_nodes()) return {};
  VMEM_ASSIGN(remote_, Remote::start(options_, wake_, driver_));
  VMEM_LOG_INFO("pages on other nodes: {}", remote_->tier().describe());
  return {};
}

void MemoryStack::start_copies() {
  if (!disk_ || !remote_ || remote_->joint() == nullptr || options_.published_cache_disk == 0) return;
  sharing::DiskCopies::Config config{.on_ready = wake_};
  config.limit_bytes = options_.published_cache_disk.value_or(config.limit_bytes);
  copies_ = std::make_unique<sharing::DiskCopies>(remote_->joint()->tier(), *disk_, clock_, std::move(config));
  remote_->joint()->keep_copies(copies_.get());
}

// The tier's thread and queue start with the first mapping.
void MemoryStack::start_files() {
  tiers::FileTier::Config config;
  config.make_queue = [] { return tiers::make_io_queue({.files = {}, .depth = kDiskDepth}); };
  config.on_ready = wake_;
  config.frame_reader = gds_;
  config.answer_wait = std::chrono::microseconds(options_.call_wait_us);
  files_ = std::make_unique<tiers::FileTier>(std::move(config));
}

// Without what copies of other nodes' pages take. REQUIRES: the option nvme.
tiers::Tier& MemoryStack::disks() const { return copies_ ? copies_->disks() : *disk_; }

// Other nodes' memory before this node's disks, unless these are measured to be faster.
tiers::Tier* MemoryStack::below_host() {
  if (!remote_) return disk_.get();
  if (!disk_) return &remote_->tier();
  if (!below_)
    below_ = std::make_unique<tiers::StackedTier>(std::vector<tiers::Tier*>{&remote_->tier(), &disks()}, &clock_);
  return below_.get();
}

tiers::Tier& MemoryStack::sources() {
  if (!remote_ || remote_->joint() == nullptr) return *files_;
  tiers::Tier* const nodes = copies_ ? &copies_->sources() : &remote_->joint()->tier();
  if (!sources_) sources_ = std::make_unique<tiers::StackedTier>(std::vector<tiers::Tier*>{files_.get(), nodes});
  return *sources_;
}

// The mover counts one tier below host memory; this tells disks from nodes.
void MemoryStack::add_to(vmem_statistics& out) const {
  const tiers::TierUsage disk = disk_ ? disks().usage() : tiers::TierUsage{};
  out.nvme_budget_bytes = disk.budget_bytes;
  out.nvme_used_bytes = disk.used_bytes;
  if (copies_) out.metadata_bytes += copies_->statistics().metadata_bytes;
  if (disk_) add_compression(disk_->compression(), out);
  if (remote_) remote_->add_to(out);
}

// A leaked tier keeps its threads, its reader and the host memory that its requests name.
bool MemoryStack::quarantine() {
  below_.reset();
  sources_.reset();
  copies_.reset();
  remote_.reset();
  const bool disk = disk_ && disk_->quarantined(), files = files_ && files_->quarantined();
  if (!disk && !files) return false;
  if (disk) (void)disk_.release();
  if (files) (void)files_.release();
  (void)host_.release();
  return true;
}

}  // namespace vmem::runtime
