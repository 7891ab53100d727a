// Pages sent through a disk tier as the mover sends them: from and to host memory, as many under way, the tier set up as the runtime does.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "base/status.hpp"
#include "bench/settings.hpp"
#include "tiers/disk/disk_tier.hpp"

namespace vmem::bench {

// The directories of --nvme, or of --option nvme=. Errors: INVALID_OPTION, also when there is none.
Result<std::vector<StoreDirectory>> disk_directories(const Settings& settings);

// Memory of many pages, aligned for direct I/O and touched.
class PageMemory {
 public:
  static Result<PageMemory> create(std::uint64_t page_bytes, std::uint64_t count);
  std::uint64_t page_bytes() const { return page_bytes_; }
  std::uint64_t count() const { return count_; }
  std::uint64_t bytes() const { return page_bytes_ * count_; }
  std::span<std::byte> page(std::uint64_t i) const { return {memory_.get() + i * page_bytes_, page_bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t page_bytes_ = 0, count_ = 0;
};

class DiskPages {
 public:
  struct Config {
    std::vector<StoreDirectory> directories;
    std::string compress = "off";  // as the option
    std::uint64_t page_bytes = 0;
    std::uint64_t pages = 0;
    std::optional<std::uint64_t> disk_bytes_s;  // a slower disk: so much each way
  };
  static Result<std::unique_ptr<DiskPages>> create(const Config& config);

  // GB/s of pages as they are. Versions count up, so that no page is taken for an older one.
  Result<double> store(const PageMemory& from);
  Result<double> load(const PageMemory& to);
  tiers::CompressionCounters counters() const { return tier_->compression(); }

 private:
  DiskPages() = default;
  Result<double> move(tiers::Direction direction, const PageMemory& memory);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t ready_ = 0;
  std::uint64_t version_ = 0;
  std::vector<tiers::SlotId> slots_;
  std::unique_ptr<tiers::DiskTier> tier_;
};

}  // namespace vmem::bench
