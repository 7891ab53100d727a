// Pages through a disk tier configured as the runtime configures it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "bench/settings.hpp"
#include "bench/tier_pages.hpp"
#include "runtime/options/options.hpp"
#include "tiers/disk/disk_tier.hpp"

namespace vmem::bench {

// The directories of --nvme or --option nvme=, and --option nvme_poll=. Errors: INVALID_OPTION,
// also if there is no directory.
Result<Options> disk_options(const Settings& settings);

struct DiskNeed {
  std::uint64_t tier = 0;    // of pages in the tier, whose size --nvme gives
  std::uint64_t beside = 0;  // more in files beside it
};
// Refuses what the directories cannot hold, before anything is written. Errors: INVALID_OPTION.
Status check_disk_room(std::string_view scenario, std::span<const StoreDirectory> directories, DiskNeed need);

class DiskPages final : public TierPages {
 public:
  struct Config {
    std::vector<StoreDirectory> directories;
    std::string compress = "off";  // as the option
    std::uint64_t page_bytes = 0;
    std::uint64_t pages = 0;
    std::optional<std::uint64_t> disk_bytes_s;  // emulates a slower disk: bytes/s each way
    bool poll = false;                          // as the option nvme_poll
  };
  static Result<std::unique_ptr<DiskPages>> create(const Config& config);
  std::string describe() const { return tier_->describe(); }
  tiers::CompressionCounters counters() const { return tier_->compression(); }

 private:
  DiskPages() = default;
  std::unique_ptr<tiers::DiskTier> tier_;
};

}  // namespace vmem::bench
