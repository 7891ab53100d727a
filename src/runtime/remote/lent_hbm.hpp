// HBM of one GPU of this host that a daemon lends, and the pinned memory through which pages get
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "gpu/handles.hpp"
#include "rdma/transport/transport.hpp"
#include "tiers/hbm/hbm_tier.hpp"

namespace vmem::runtime {

// As `vmem daemon --hbm ORDINAL:SIZE` says it.
struct HbmLoan {
  int ordinal = 0;
  std::uint64_t bytes = 0;
};
// Errors: INVALID_OPTION.
Result<HbmLoan> parse_hbm_loan(const std::string& text);

class LentHbm {
 public:
  // Loads the driver (see Driver::load), pins `staging`, which outlives this, and allocates the
  // memory. `on_ready`: see HbmTier. Errors: NO_DRIVER; INVALID_OPTION for a GPU that is not there
  // or has less memory free, with the figures; those of the driver.
  static Result<std::unique_ptr<LentHbm>> open(const std::string& driver, const HbmLoan& loan, rdma::Bytes staging,
                                               std::function<void()> on_ready);
  ~LentHbm();
  LentHbm(const LentHbm&) = delete;
  LentHbm& operator=(const LentHbm&) = delete;

  tiers::HbmTier& tier() { return *tier_; }
  const tiers::HbmTier& tier() const { return *tier_; }
  // At most so much is lent, and never more than the loan. Any thread.
  void set_limit(std::uint64_t bytes);
  // Finds out whether UCX, with these settings, moves this GPU's memory itself, and logs it. Call
  // once, before describe().
  void ask_ucx(const std::vector<std::pair<std::string, std::string>>& settings);
  // "GPU 0, through pinned staging", and what UCX said: "; UCX 1.13.1 does not move its memory: it
  // has no CUDA memory type"
  std::string describe() const;

 private:
  explicit LentHbm(HbmLoan loan) : loan_(loan) {}
  Status check_free() const;
  Status pin(rdma::Bytes staging);

  const HbmLoan loan_;
  gpu::DriverRef driver_;
  gpu::PrimaryContext context_;
  void* pinned_ = nullptr;
  std::string ucx_;  // what it said; "": not asked
  std::unique_ptr<tiers::HbmTier> tier_;
};

}  // namespace vmem::runtime
