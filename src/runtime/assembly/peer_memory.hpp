// GPU memory that keeps other GPUs' pages: other GPUs that keep this program's pages (option peers,
// and daemons of its cluster on this host), and what other processes borrow from this program's
// GPUs (option lend).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "migration/mover.hpp"
#include "peer/borrower.hpp"
#include "peer/lender.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/options/options.hpp"
#include "runtime/remote/found_lenders.hpp"
#include "tiers/near_tier.hpp"
#include "topology/topology.hpp"

namespace vmem::runtime {

// One thread. Outlives the mover, which calls what tiers() and loans() return.
class PeerMemory {
 public:
  // `wake` is called on other threads when a tier, a borrower or a lender has news for the mover.
  // `options` and `devices` outlive the object. Errors: INVALID_OPTION; those of the driver.
  static Result<std::unique_ptr<PeerMemory>> start(const Options& options, std::shared_ptr<const gpu::Driver> driver,
                                                   const Devices& devices, std::function<void()> wake);

  // Adds those that take pages before host memory, at the end. A log line says for each how it is
  // used, or why it is not: nobody asked for them, so that is no error. Call before tiers().
  void borrow_from(const std::vector<FoundLender>& found, const topology::Topology& topology);

  std::vector<migration::PeerTier> tiers() const;
  std::vector<migration::Loan> loans() const;
  // Indices into tiers() that the device can access, the nearest first. `device`: index into
  // Devices.
  std::vector<std::uint8_t> reachable_from(std::size_t device, const topology::Topology& topology) const;
  // The GPUs with such memory that copy to and from the device's frames themselves.
  std::vector<CUdevice> copiers_of(std::size_t device) const;
  // No borrower calls `wake` afterwards. Tiers and lenders may, until destruction.
  void stop_borrowing();

 private:
  // A GPU whose memory takes pages of other GPUs.
  struct PeerGpu {
    int ordinal = 0;
    // One of these two (gpu_of). device: of a GPU that the program does not use, opened here.
    std::unique_ptr<Device> device;
    std::optional<std::size_t> own;            // the index of a GPU that the program uses
    std::uint32_t reached_by = 0;              // bit i: device i can map it
    std::uint32_t reaches = 0;                 // bit i: it can map device i's memory
    std::uint32_t used_by = ~0u;               // bit i: it takes pages of device i
    std::optional<NodeId> node;                // set if a node of the cluster lends
    std::uint64_t bytes = 0;                   // the most that it takes
    std::unique_ptr<peer::Borrower> borrower;  // set if another process lends
    std::unique_ptr<tiers::NearTier> memory;
  };
  // A GPU of the program from which other processes borrow.
  struct LentGpu {
    std::size_t own = 0;
    std::uint64_t most_bytes = 0;
    std::unique_ptr<peer::Lender> lender;
  };

  PeerMemory(const Options& options, std::shared_ptr<const gpu::Driver> driver, const Devices& devices,
             std::function<void()> wake)
      : options_(options), driver_(std::move(driver)), devices_(devices), wake_(std::move(wake)) {}
  Status add_peer(const PeerSpec& wanted);
  Status add_found(const FoundLender& lender, const topology::Topology& topology);
  Status add_tier(std::unique_ptr<PeerGpu> peer);
  Result<std::vector<VisibleGpu>> visible_gpus() const;
  Result<std::uint32_t> devices_that_reach(CUdevice gpu) const;
  bool has_borrowed_from(const peer::Borrower& lender) const;
  Result<int> ordinal_of(const PeerSpec& wanted) const;
  Status borrow(const PeerSpec& wanted, PeerGpu& peer) const;
  Status find_own(const PeerSpec& wanted, PeerGpu& peer) const;
  Status find_reach(PeerGpu& peer) const;
  const Device& gpu_of(const PeerGpu& peer) const { return peer.own ? devices_[*peer.own] : *peer.device; }
  static std::string name_of(const PeerGpu& peer);
  Status create_tier(PeerGpu& peer) const;
  Status lend(const LendSpec& wanted);
  static migration::PeerTier memory_of(const PeerGpu& peer);
  static migration::Loan loan_of(const LentGpu& gpu);
  Result<std::uint64_t> peer_bytes(const PeerSpec& wanted, const PeerGpu& peer) const;

  const Options& options_;
  const std::shared_ptr<const gpu::Driver> driver_;
  const Devices& devices_;
  const std::function<void()> wake_;
  std::vector<std::unique_ptr<PeerGpu>> peers_;
  std::vector<LentGpu> lent_;
};

}  // namespace vmem::runtime
