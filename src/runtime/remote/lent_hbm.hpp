// HBM of one GPU of this host that a daemon lends. One part stores pages that come over the
// network, through pinned memory. Programs of this host map the other part, piece by piece: their
// pages never pass the daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "cluster/enrollment/node_record.hpp"
#include "gpu/handles.hpp"
#include "peer/lender.hpp"
#include "rdma/transport/transport.hpp"
#include "rdma/transport/ucx/ucx_memory_types.hpp"
#include "tiers/hbm/hbm_tier.hpp"

namespace vmem::runtime {

// As `vmem daemon --hbm ORDINAL:SIZE --hbm-mapped SIZE` says it.
struct HbmLoan {
  int ordinal = 0;
  std::uint64_t bytes = 0;         // of both parts
  std::uint64_t mapped_bytes = 0;  // of the part that is mapped
  std::uint64_t stored_bytes() const { return bytes - mapped_bytes; }
};
// Of --hbm. Errors: INVALID_OPTION.
Result<HbmLoan> parse_hbm_loan(const std::string& text);
// Adds --hbm-mapped. Errors: INVALID_OPTION for too little, or more than is lent in all.
Status add_mapped_part(HbmLoan& loan, std::uint64_t bytes);

class LentHbm {
 public:
  struct Config {
    std::string driver;  // see Driver::load
    HbmLoan loan;
    rdma::Bytes staging;             // pinned here, and outlives this; empty if nothing is stored
    std::string socket;              // where programs ask for memory to map, if some is for that
    std::function<void()> on_ready;  // see HbmTier
  };
  // Loads the driver, and allocates the part that stores. Pieces that are mapped are allocated when
  // programs ask for them. Errors: NO_DRIVER; INVALID_OPTION for the socket, and for a GPU that is
  // not there or has less memory free than both parts need, with the figures; those of the driver.
  static Result<std::unique_ptr<LentHbm>> open(Config config);
  ~LentHbm();
  LentHbm(const LentHbm&) = delete;
  LentHbm& operator=(const LentHbm&) = delete;

  // Null: all of it is for programs that map it.
  tiers::HbmTier* tier() { return tier_.get(); }
  const tiers::HbmTier* tier() const { return tier_.get(); }
  // What both parts may take: see cluster::hbm_parts. `drains`: nothing is to be mapped any more.
  // Programs are asked for the rest at once, and have two seconds. Any thread.
  void set_limit(std::optional<cluster::HbmLimit> limit, bool drains);
  // Of the part that is mapped; also what is overdue counts as held.
  peer::Lender::Usage mapped() const { return lender_ ? lender_->usage() : peer::Lender::Usage{}; }
  // What the node's record says of that part; 0 bytes: there is none.
  cluster::MappedHbm mapped_part() const;
  // Finds out whether UCX, with these settings, moves the memory that stores pages itself, and logs
  // it. Then the result says how a transport gets to it, while this lives; nullopt: it does not.
  // Call once, before describe().
  std::optional<rdma::UcxGpuMemory> ask_ucx(const std::vector<std::pair<std::string, std::string>>& settings);
  // Ends the tier, its thread and its registrations, and lends no more pieces; those that programs
  // have stay theirs. The GPU's context stays: a transport that sends from its memory ends later.
  void close();
  // "GPU 0, through pinned staging", and what UCX said: "; UCX 1.13.1 does not move its memory: it
  // has no CUDA memory type". Or "GPU 0, fetched from directly by UCX 1.22.0, stored to through
  // pinned staging". Only the GPU if nothing is stored.
  std::string describe() const;

 private:
  explicit LentHbm(HbmLoan loan) : loan_(loan) {}
  Status check_free() const;
  Status store(Config& config);
  Status lend_pieces(Config& config, CUdevice device);
  Status pin(rdma::Bytes staging);
  rdma::UcxGpuMemory gpu_memory(rdma::UcxMemoryType type) const;

  const HbmLoan loan_;
  gpu::DriverRef driver_;
  gpu::PrimaryContext context_;
  void* pinned_ = nullptr;
  std::string path_ = "through pinned staging";
  std::unique_ptr<tiers::HbmTier> tier_;
  std::unique_ptr<peer::Lender> lender_;  // null: nothing is for programs that map it
};

}  // namespace vmem::runtime
