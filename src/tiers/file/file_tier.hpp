// Pages of files that are mapped read-only. The tier loads them into slots of pinned host memory,
// in place, by direct I/O if the file system supports it, or straight into frames. It stores
// nothing. One thread, started by the first mapping, keeps the disks busy; the mover never waits.
//
// FileTier → FileLoads (the thread's jobs) → IoThread, TransferLedger; FileTier → FileLayouts.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/aside.hpp"
#include "tiers/async/io_thread.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/file/file_layouts.hpp"
#include "tiers/file/file_loads.hpp"
#include "tiers/page_source.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class FileTier final : public Tier, public FrameLoadingTier {
 public:
  struct Config {
    // Makes a queue without registered files: Io::file is a descriptor.
    std::function<Result<std::unique_ptr<IoQueue>>()> make_queue;
    std::uint32_t piece_bytes = 1u << 20;       // maximum per request to a disk
    std::function<void()> on_ready;             // called by the tier's thread: poll has completions
    std::shared_ptr<FrameReader> frame_reader;  // null: all loads go through host memory
    // Time limit for a disk: in map, and in finish since the last progress.
    std::chrono::microseconds answer_wait{30'000'000};
  };
  explicit FileTier(Config config) : config_(std::move(config)) {}
  ~FileTier() override;

  // Any thread. Pages begin at multiples of 4096 bytes in the file. The source must not outlive the
  // tier. `bytes` of 0: to the end.
  // Errors: those of MappedFile and, at the first call, of the queue; TIMEOUT.
  Result<std::shared_ptr<PageSource>> map(const std::string& path, std::uint64_t offset, std::uint64_t bytes);

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override { return {}; }  // files use no budget
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<SlotGrant> allocate(std::uint64_t) override { return SlotGrant{}; }  // see map
  void release(SlotId) override {}                                            // by the source
  bool loads_into_frames(SlotId slot, int device) const override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  Finished finish() noexcept override;
  bool quarantined() const noexcept { return ledger_.quarantined(); }  // what finish found
  std::string where(SlotId slot) const override;
  std::string describe() const;  // REQUIRES: a map succeeded

 private:
  class Source;

  Status start();
  Result<std::shared_ptr<MappedFile>> open(const std::string& path, std::uint64_t offset, std::uint64_t bytes);
  Status try_frames(MappedFile& file) const;
  std::unexpected<Error> unanswered(const std::string& path) const;

  static constexpr TierInfo info_{.name = "file"};
  const Config config_;
  const std::shared_ptr<Aside> closing_ = std::make_shared<Aside>();  // unmapped files
  FileLayouts layouts_;
  TransferLedger ledger_{config_.on_ready};

  // Guards the creation of the members below by the first `map`, which any thread calls. A transfer
  // follows the mapping that it loads.
  mutable std::mutex starting_;
  std::unique_ptr<IoThread> thread_;
  std::unique_ptr<FileLoads> loads_;
};

}  // namespace vmem::tiers
