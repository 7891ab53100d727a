#include "bench/disk_pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "bench/paced_queue.hpp"
#include "bench/samples.hpp"
#include "tiers/disk/uring_queue.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kUnderWayBytes = std::uint64_t{64} << 20;  // as the mover: at least four pages
constexpr std::uint64_t kUnderWayPages = 4;
constexpr std::uint64_t kAlignment = std::uint64_t{2} << 20;

}  // namespace

Result<std::vector<StoreDirectory>> disk_directories(const Settings& settings) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& option : settings.runtime_options) {
    if (option.first == "nvme") given.push_back(option);
  }
  VMEM_ASSIGN(const Options options, resolve_options(given));
  if (options.nvme.empty())
    return fail(VMEM_ERROR_INVALID_OPTION,
                fmt::format("{} needs a disk; name a directory on it with --nvme DIR:SIZE", settings.scenario));
  return options.nvme;
}

void PageMemory::Free::operator()(std::byte* memory) const { std::free(memory); }

Result<PageMemory> PageMemory::create(std::uint64_t page_bytes, std::uint64_t count) {
  PageMemory made;
  const std::uint64_t bytes = (page_bytes * count + kAlignment - 1) / kAlignment * kAlignment;
  made.memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes)));
  if (!made.memory_)
    return fail(VMEM_ERROR_OUT_OF_MEMORY, fmt::format("no host memory for {} of pages", format_bytes(bytes)));
  std::memset(made.memory_.get(), 1, bytes);
  made.page_bytes_ = page_bytes;
  made.count_ = count;
  return made;
}

Result<std::unique_ptr<DiskPages>> DiskPages::create(const Config& config) {
  std::unique_ptr<DiskPages> pages(new DiskPages);
  tiers::DiskTier::Config tier;
  tier.directories = config.directories;
  tier.make_queue = [&](const std::vector<int>& files) -> Result<std::unique_ptr<tiers::IoQueue>> {
    VMEM_ASSIGN(auto queue, tiers::make_uring_queue({.files = files}));
    if (!config.disk_bytes_s) return queue;
    return std::make_unique<PacedQueue>(std::move(queue), *config.disk_bytes_s);
  };
  tier.workers = tiers::DiskTier::default_workers();
  VMEM_ASSIGN(tier.compression, tiers::compression_config(config.compress));
  tier.on_ready = [self = pages.get()] {
    const std::lock_guard lock(self->mutex_);
    ++self->ready_;
    self->changed_.notify_all();
  };
  VMEM_ASSIGN(pages->tier_, tiers::DiskTier::create(std::move(tier)));
  while (pages->slots_.size() < config.pages) {
    std::unique_lock lock(pages->mutex_);
    const std::uint64_t seen = pages->ready_;
    lock.unlock();
    VMEM_ASSIGN(const tiers::SlotGrant grant, pages->tier_->allocate(config.page_bytes));
    if (grant.grant == tiers::Grant::granted) {
      pages->slots_.push_back(grant.slot);
    } else if (grant.grant == tiers::Grant::full) {
      return fail(VMEM_ERROR_INVALID_OPTION, fmt::format("{} pages of {} do not fit into --nvme; give it more",
                                                         config.pages, format_bytes(config.page_bytes)));
    } else {
      lock.lock();
      pages->changed_.wait(lock, [&] { return pages->ready_ != seen; });
    }
  }
  return pages;
}

Result<double> DiskPages::store(const PageMemory& from) {
  ++version_;
  return move(tiers::Direction::store, from);
}

Result<double> DiskPages::load(const PageMemory& to) { return move(tiers::Direction::load, to); }

Result<double> DiskPages::move(tiers::Direction direction, const PageMemory& memory) {
  const std::uint64_t most = std::max(kUnderWayPages, kUnderWayBytes / memory.page_bytes());
  std::vector<tiers::Completion> completions;
  std::uint64_t sent = 0, done = 0;
  const Stopwatch watch;
  while (done < memory.count()) {
    std::unique_lock lock(mutex_);
    const std::uint64_t seen = ready_;
    lock.unlock();
    for (; sent < memory.count() && sent - done < most; ++sent) {
      tiers::Transfer transfer;
      transfer.page.granule = std::uint32_t(sent);
      transfer.version = version_;
      transfer.slot = slots_[sent];
      transfer.host = memory.page(sent).data();
      transfer.bytes = memory.page_bytes();
      transfer.direction = direction;
      VMEM_TRY(tier_->submit({&transfer, 1}));
    }
    completions.clear();
    VMEM_TRY(tier_->poll(completions));
    for (const tiers::Completion& each : completions) {
      if (each.outcome != tiers::Outcome::done) {
        tier_->finish();  // the memory is the caller's
        return std::unexpected(each.error);
      }
      ++done;
    }
    if (!completions.empty()) continue;
    lock.lock();
    changed_.wait(lock, [&] { return ready_ != seen; });
  }
  return static_cast<double>(memory.bytes()) / watch.nanoseconds();
}

}  // namespace vmem::bench
