// Pages in files on disks. Transfers run between the files and slots of pinned host memory: direct
// I/O in place, or through staging buffers for compressed pages; loads may also go straight to
// frames. The mover waits for none of the threads.
//
// Calls go down, results come back as tasks on the tier's thread:
//   DiskTier → DiskLoads, DiskStores     a transfer's way; on the tier's thread (IoThread)
//            → PageSealer, SlotContents  checksums and compression, on workers; what slots hold
//            → DiskSpace → SlotFiles     slots; one thread per directory allocates and punches
//            → TransferLedger            transfers in flight, completions
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tiers/async/io_thread.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"
#include "tiers/disk/disk_loads.hpp"
#include "tiers/disk/disk_parts.hpp"
#include "tiers/disk/disk_space.hpp"
#include "tiers/disk/disk_stores.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class DiskTier final : public Tier, public FrameLoadingTier, public DegradableTier {
 public:
  using MakeQueue = std::function<Result<std::unique_ptr<IoQueue>>(const std::vector<int>& files)>;
  struct Config {
    std::vector<StoreDirectory> directories;
    MakeQueue make_queue;
    std::uint32_t piece_bytes = 1u << 20;  // maximum per request to a disk
    std::uint32_t workers = 1;             // threads for checksums and compression
    CompressionConfig compression;
    // Called by the tier's threads when poll has completions or allocate may have a slot.
    std::function<void()> on_ready;
    std::shared_ptr<FrameReader> frame_reader;  // null: all loads go through host memory
    // Time limit for a disk: in create, and in finish since the last progress.
    std::chrono::microseconds answer_wait{30'000'000};
  };
  // Three quarters of the processors, 2 to 16: compression uses the capacity that checksums leave.
  static std::uint32_t default_workers();
  // Errors: those of SlotFiles and the queue; TIMEOUT.
  static Result<std::unique_ptr<DiskTier>> create(Config config);
  ~DiskTier() override;

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  std::vector<std::uint64_t> places() const override;    // directories in service
  void expect(std::uint64_t, std::uint64_t) override {}  // chunks are allocated faster than filled
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  bool loads_into_frames(SlotId slot, int device) const override;
  bool degraded(SlotId slot) const override;  // its directory is unreadable
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  Finished finish() noexcept override;
  bool quarantined() const noexcept { return ledger_.quarantined(); }  // what finish found
  std::string where(SlotId slot) const override;
  std::string describe() const;
  CompressionCounters compression() const { return sealer_.counters(); }
  // Total bytes punched out of slots of compressed pages.
  std::uint64_t punched_bytes() const;

 private:
  explicit DiskTier(Config config);
  Status open();
  Status open_frame_files();
  Result<std::unique_ptr<IoQueue>> make_queue();

  const Config config_;
  const TierInfo info_;
  TransferLedger ledger_;
  SlotContents contents_;
  PageSealer sealer_;
  std::unique_ptr<DiskSpace> space_;
  FrameFiles frames_;
  const MeteredQueue* meter_ = nullptr;  // of the thread's queue; null: without compression
  std::unique_ptr<IoThread> thread_;
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<DiskLoads> loads_;
  std::unique_ptr<DiskStores> stores_;
};

}  // namespace vmem::tiers
