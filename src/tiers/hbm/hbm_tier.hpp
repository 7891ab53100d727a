// HBM of a GPU for pages of other nodes. Pages are copied from and to pinned host memory, and no
// kernel uses them. The memory is plain device allocations (slabs), all made at the start, so that
// what is lent is there.
//
// The owner can lower the limit while pages are here: usage() shows the new budget at once, and
// slabs go back to the driver as pages are released. Pages that lie in the last slabs are moved to
// free granules of the others. What a slot held is wiped before another slot gets it.
//
// Others may read a page in place (PinningTier) that lies in one run of granules. A pinned page is
// not moved: none begins to move, and a move in progress is undone. In slabs that are to go back
// nothing is pinned any more, so only reads that began before can delay that.
//
// Threads: any thread calls usage() and set_limit(); one thread makes all other calls, and none of
// them waits for the driver. A thread of the tier makes all driver calls, and polls the events.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log_limit.hpp"
#include "gpu/handles.hpp"
#include "tiers/async/inbox.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/hbm/hbm_space.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

class HbmTier final : public Tier, public PinningTier {
 public:
  struct Config {
    gpu::DriverRef driver;
    int ordinal = 0;
    std::uint64_t bytes = 0;                             // a multiple of the granule
    std::uint64_t slab_bytes = std::uint64_t{64} << 20;  // likewise; the unit of set_limit
    std::function<void()> on_ready;                      // see TransferLedger
  };
  // Errors: those of the driver; OUT_OF_MEMORY if the GPU has less.
  static Result<std::unique_ptr<HbmTier>> create(Config config);
  ~HbmTier() override;

  // At most so many bytes, down to a multiple of a slab, or all that it had at the start. Memory
  // that the driver does not give back now is asked for again each second.
  void set_limit(std::uint64_t bytes);
  // Memory of the GPU that the tier has at present.
  std::uint64_t slab_bytes() const;

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  Finished finish() noexcept override;
  void register_memory(Register registers) override;
  std::optional<std::span<std::byte>> pin(SlotId slot) override;
  void unpin(SlotId slot) override;

 private:
  struct Slot {
    GranuleRuns runs;
    std::uint64_t granules = 0;
    std::uint64_t grant = 0;  // number of its allocation; 0: free
    std::uint32_t in_flight = 0;
    std::uint32_t pins = 0;
  };
  struct InFlight {
    std::uint64_t id = 0;
    SlotId slot = 0;
    gpu::Event done;
  };
  // The copies of one direction, in order.
  struct Lane {
    gpu::Stream stream;
    std::deque<InFlight> in_flight;
  };
  struct Move {
    SlotId slot = 0;
    std::uint64_t grant = 0;
    std::size_t run = 0;  // index in the slot's runs
    GranuleRun from;
    GranuleRuns to;
  };

  // What other threads ask of the tier's thread, beside its tasks.
  struct Wanted {
    bool stop = false;
    bool fit = false;         // the limit has changed, or what held up a move is over
    bool unregister = false;  // finish() waits for it
  };
  struct Registrations {
    Register make;  // for the tier's thread; empty: slabs are not registered
    // By slab; null: nobody else may read it. Guarded; only the tier's thread writes to it.
    std::vector<std::shared_ptr<void>> slabs;
    std::condition_variable ended;  // Wanted::unregister is done
  };

  explicit HbmTier(Config config);
  Status open();

  // The tier's thread.
  void run();
  bool wait();
  bool fit();
  bool back(std::uint32_t slab);
  void free_slab(std::uint32_t slab);
  void register_slab(std::uint32_t slab);
  void unregister_all();
  bool move_one();
  std::optional<Move> next_move();
  Status copy_within(const Move& move);
  void start(const Transfer& transfer);
  Status queue_copies(const Transfer& transfer, const GranuleRuns& runs, Lane& lane);
  void end_transfers();
  bool end_next(Direction direction);
  void complete(const InFlight& ended, Direction direction, const Status& how);
  void wipe(const GranuleRuns& runs);
  void spoil(const GranuleRuns& runs, const Error& error);
  void failed(const Error& error);
  CUdeviceptr address(const GranuleRun& run) const;
  Lane& lane(Direction direction) { return lanes_[static_cast<std::size_t>(direction)]; }
  bool is_idle() const { return lanes_[0].in_flight.empty() && lanes_[1].in_flight.empty(); }

  std::uint64_t budget_granules() const;

  const Config config_;
  const std::string name_;
  const TierInfo info_;
  gpu::PrimaryContext context_;
  TransferLedger ledger_;

  // The tier's thread, after open().
  std::vector<std::uint32_t> slab_granules_;
  std::vector<gpu::DeviceMemory> slabs_;
  std::array<Lane, 2> lanes_;
  std::vector<gpu::Event> spare_events_;
  // The driver refused a slab, and is not asked before then.
  std::optional<std::chrono::steady_clock::time_point> ask_again_;
  bool busy_ = false;  // fit() has more to do
  LogLimit failures_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable woken_;
  std::deque<Inbox::Task> tasks_;
  Wanted wanted_;
  bool lost_ = false;  // the GPU failed, and all pages are gone
  HbmSpace space_;
  Registrations registered_;
  std::vector<Slot> slots_;
  std::vector<SlotId> free_slots_;
  std::uint64_t used_granules_ = 0;    // of slots
  std::uint64_t spoilt_granules_ = 0;  // could not be wiped, and are not used again
  std::uint64_t last_grant_ = 0;

  std::thread thread_;
};

}  // namespace vmem::tiers
