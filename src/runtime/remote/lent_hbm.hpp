// HBM of one GPU of this host that a daemon lends, and the pinned memory through which pages get
// there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "gpu/handles.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"
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
  // Finds out whether UCX, with these settings, moves this GPU's memory itself, and logs it. Then
  // the result says how a transport gets to it, while this lives; nullopt: it does not. Call once,
  // before describe().
  std::optional<rdma::UcxGpuMemory> ask_ucx(const std::vector<std::pair<std::string, std::string>>& settings);
  // Ends the tier, its thread and its registrations. The GPU's context stays: a transport that
  // sends from its memory ends later.
  void close() { tier_.reset(); }
  // "GPU 0, through pinned staging", and what UCX said: "; UCX 1.13.1 does not move its memory: it
  // has no CUDA memory type". Or "GPU 0, fetched from directly by UCX 1.22.0, stored to through
  // pinned staging".
  std::string describe() const;

 private:
  explicit LentHbm(HbmLoan loan) : loan_(loan) {}
  Status check_free() const;
  Status pin(rdma::Bytes staging);
  rdma::UcxGpuMemory gpu_memory(rdma::UcxMemoryType type) const;

  const HbmLoan loan_;
  gpu::DriverRef driver_;
  gpu::PrimaryContext context_;
  void* pinned_ = nullptr;
  std::string path_ = "through pinned staging";
  std::unique_ptr<tiers::HbmTier> tier_;
};

}  // namespace vmem::runtime
