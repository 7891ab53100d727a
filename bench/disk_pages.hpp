// Pages through a disk tier that is set up as the runtime does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/options.hpp"
#include "base/status.hpp"
#include "bench/settings.hpp"
#include "bench/tier_pages.hpp"
#include "tiers/disk/disk_tier.hpp"

namespace vmem::bench {

// The directories of --nvme, or of --option nvme=, and --option nvme_poll=. Errors: INVALID_OPTION, also when there is no directory.
Result<Options> disk_options(const Settings& settings);

class DiskPages final : public TierPages {
 public:
  struct Config {
    std::vector<StoreDirectory> directories;
    std::string compress = "off";  // as the option
    std::uint64_t page_bytes = 0;
    std::uint64_t pages = 0;
    std::optional<std::uint64_t> disk_bytes_s;  // a slower disk: so much each way
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
