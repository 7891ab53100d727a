#include "tiers/disk/disk_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::tiers {
namespace {

// Per page in flight and direction: a 32 MiB page and its header fit.
constexpr std::uint64_t kStagingBytes = std::uint64_t{33} << 20;

// With compression, one page per worker and one on the path: compressing takes longer than writing.
std::uint32_t busy_pages(const DiskTier::Config& config) {
  const std::uint32_t usual = TierInfo{}.busy_pages;
  return config.compression.on ? std::max(usual, config.workers + 1) : usual;
}

std::unexpected<Error> no_memory(std::uint64_t page_bytes) {
  return fail(VMEM_ERROR_OUT_OF_MEMORY,
              fmt::format("no memory for {} to send a page of {} with; it stays where it is",
                          format_bytes(kHeaderBytes), format_bytes(page_bytes)),
              ENOMEM);
}

}  // namespace

DiskTier::DiskTier(Config config)
    : config_(std::move(config)),
      info_{.name = "nvme", .busy_pages = busy_pages(config_)},
      ledger_(config_.on_ready),
      sealer_(config_.compression, config_.workers) {}

Result<std::unique_ptr<DiskTier>> DiskTier::create(Config config) {
  std::unique_ptr<DiskTier> tier(new DiskTier(std::move(config)));
  VMEM_TRY(tier->open());
  return tier;
}

std::uint32_t DiskTier::default_workers() { return std::clamp(std::thread::hardware_concurrency() * 3 / 4, 2u, 16u); }

Status DiskTier::open() {
  VMEM_ASSIGN(space_, DiskSpace::create(config_.directories, config_.answer_wait, ledger_));
  VMEM_ASSIGN(std::unique_ptr<IoQueue> queue, make_queue());
  if (config_.frame_reader) VMEM_TRY(open_frame_files());
  thread_ = std::make_unique<IoThread>(IoThread::Config{.name = "vmem-disk",
                                                        .failure = "the disk tier cannot send requests",
                                                        .queue = std::move(queue),
                                                        .ledger = &ledger_});
  workers_ = std::make_unique<Workers>("vmem-disk-work", config_.workers,
                                       [this](Inbox::Task task) { thread_->post(std::move(task)); });
  const DiskParts parts{.ledger = ledger_,
                        .space = *space_,
                        .contents = contents_,
                        .sealer = sealer_,
                        .thread = *thread_,
                        .workers = *workers_,
                        .frames = frames_,
                        .meter = meter_,
                        .worker_count = config_.workers,
                        .piece_bytes = config_.piece_bytes,
                        .staging_bytes = info_.busy_pages * kStagingBytes};
  loads_ = std::make_unique<DiskLoads>(parts);
  stores_ = std::make_unique<DiskStores>(parts);
  return {};
}

Result<std::unique_ptr<IoQueue>> DiskTier::make_queue() {
  VMEM_ASSIGN(std::unique_ptr<IoQueue> queue, config_.make_queue(space_->descriptors()));
  if (!sealer_.compresses()) return queue;
  auto metered = std::make_unique<MeteredQueue>(std::move(queue), [this] { return sealer_.now_ns(); });
  meter_ = metered.get();
  return metered;
}

Status DiskTier::open_frame_files() {
  frames_.reader = config_.frame_reader;
  for (const int descriptor : space_->descriptors()) {
    const std::string& path = space_->path(std::uint32_t(frames_.files.size()));
    auto opened = open_within(config_.answer_wait, config_.frame_reader, descriptor);
    if (!opened)
      return fail(VMEM_ERROR_TIMEOUT,
                  fmt::format("--nvme {}: its file system did not answer a read straight to HBM within {}", path,
                              exact_duration_us(std::uint64_t(config_.answer_wait.count()))));
    VMEM_LOG_INFO("pages in {} {}", path,
                  *opened ? "can go straight to HBM by " + config_.frame_reader->describe()
                          : "come through host memory: " + opened->error().message);
    frames_.files.push_back(*opened ? **std::move(opened) : nullptr);
  }
  return {};
}

// No transfer is in flight after finish, so no thread uses the loads and stores.
DiskTier::~DiskTier() {
  if (space_) finish();
}

std::string DiskTier::describe() const { return thread_->describe(); }

std::uint64_t DiskTier::punched_bytes() const { return space_->punched_bytes(); }

TierUsage DiskTier::usage() const { return space_->usage(); }

std::vector<std::uint64_t> DiskTier::places() const { return space_->budgets(); }

Result<SlotGrant> DiskTier::allocate(std::uint64_t page_bytes) { return space_->allocate(page_bytes); }

void DiskTier::release(SlotId slot) {
  contents_.reset_plain(slot);
  space_->release(slot);
}

bool DiskTier::degraded(SlotId slot) const { return space_->unreadable(slot); }

bool DiskTier::loads_into_frames(SlotId slot, int device) const {
  if (frames_.files.empty() || !contents_.plain(slot)) return false;
  const auto& file = frames_.files[space_->place(slot).file];
  return file != nullptr && file->reaches(device);
}

Status DiskTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    auto header = DiskJob::make_header();
    if (!header) return no_memory(transfer.bytes);
    const SlotFiles::Place place = space_->place(transfer.slot);
    if (transfer.direction == Direction::load) {
      auto job = std::make_unique<DiskJob>(transfer, place, std::move(header));
      transfer.id = ledger_.begin(Direction::load, [&](std::uint64_t id) {
        job->transfer.id = id;
        loads_->post(std::move(job));
      });
    } else {
      auto job = std::make_unique<StoreJob>(transfer, place, std::move(header));
      contents_.reset_plain(transfer.slot);
      transfer.id = ledger_.begin(Direction::store, [&](std::uint64_t id) {
        job->transfer.id = id;
        stores_->post(std::move(job));
      });
    }
  }
  return {};
}

Status DiskTier::poll(std::vector<Completion>& completions) {
  ledger_.poll(completions);
  return {};
}

Finished DiskTier::finish() noexcept {
  space_->drop_planned_changes();
  return ledger_.finish(
      config_.answer_wait,
      "a disk does not answer: the memory of pages on their way to and from it is left to the system");
}

std::string DiskTier::where(SlotId slot) const { return space_->path(space_->place(slot).file); }

}  // namespace vmem::tiers
