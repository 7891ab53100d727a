// Memory near HBM: pinned host memory, or another GPU's HBM over a peer link. The GPU copies to and
// from it in stream order and can use it in place at a page's own address. Slots are driver
// handles. Creating one of host memory costs about 200 µs per MiB (the kernel clears and pins the
// memory), one of HBM about 30 µs regardless of size; a thread creates them ahead of need.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "gpu/fingerprinter.hpp"
#include "gpu/memory_location.hpp"
#include "tiers/frame_pool.hpp"
#include "tiers/slot_records.hpp"
#include "tiers/tier.hpp"

namespace vmem::tiers {

// Any thread: usage, set_budget. Others: the mover.
class NearTier final : public Tier, public InPlaceTier, public ComparingTier, public YieldingTier {
 public:
  struct Device {
    CUcontext context;
    CUdevice ordinal;
    // Of the GPU that has the memory, if it can access this device's frames: its engines copy, so
    // that this device's are free for page tables (docs/decisions/0117). Null: this device copies.
    CUcontext copier = nullptr;
  };
  // Who creates slots: a thread of the tier, or the owner, by grow_one (tests).
  enum class Growth : std::uint8_t { own_thread, by_owner };
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    std::vector<Device> devices;               // transfers name them by index
    std::uint32_t reached_by = ~0u;            // bit i: devices[i] can reach this memory
    CUmemLocation location = gpu::on_host(0);  // or a device's HBM
    std::string name = "host";                 // of the tier: "host", "peer 1"
    std::uint64_t budget_bytes = 0;
    std::uint64_t largest_budget_bytes = 0;  // maximum for set_budget; 0: budget_bytes
    HandleSource* source = nullptr;          // of the memory; null: the driver. Outlives the tier
    // With own_thread: the growing thread calls it after an attempt to create a requested slot, and
    // after failures.
    std::function<void()> on_ready;
    Growth growth = Growth::own_thread;
  };
  // Errors: those of creating streams; DEVICE_LOST.
  static Result<std::unique_ptr<NearTier>> create(Config config);
  ~NearTier() override;

  // If more is in use, usage() shows it, and released slots go back to the driver until
  // the budget is met.
  void set_budget(std::uint64_t bytes);
  // Tries to create one slot that is wanted. False: none is. REQUIRES: Growth::by_owner, and a
  // current context.
  bool grow_one();

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  void expect(std::uint64_t page_bytes, std::uint64_t count) override;
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  std::optional<gpu::Fingerprint> fingerprint(SlotId slot) const override;
  bool can_compare(int device) const override;
  void make_way(int device, Direction direction) override { devices_[std::size_t(device)].yields = direction; }
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  Finished finish() noexcept override;
  // Handing out a handle or an address for writing forgets the slot's fingerprint.
  CUmemGenericAllocationHandle handle(SlotId slot) const override;
  std::byte* host_address(SlotId slot, pagetable::Access access) const override;
  CUdeviceptr device_address(SlotId slot, pagetable::Access access) const override;

 private:
  explicit NearTier(Config config);
  struct InFlight {
    std::uint64_t id;
    CUevent done;
    std::optional<SlotId> conditional = {};      // slot of a store `if_changed`
    std::optional<SlotId> learned = {};          // slot whose fingerprint it computes
    std::optional<std::uint32_t> compared = {};  // record of a compare, from records_
  };
  struct Events {
    CUcontext context = nullptr;
    std::vector<CUevent> spare;
  };
  struct Link {  // transfers in order on one stream
    CUstream stream = nullptr;
    Events* events = nullptr;  // of the stream's context
    std::deque<InFlight> in_flight;
  };
  struct PerDevice {
    CUcontext context = nullptr;
    Events events, copy_events;
    gpu::Stream load_stream, store_stream;
    gpu::Stream return_stream;  // of a peer tier with a copier: loads to elsewhere than HBM
    Direction yields = Direction::store;
    gpu::DeviceMemory pause;  // a word that is set between the pieces of copies that make way
    // A piece (kPieceBytes) of `yields` was queued since the last pause. The pause is queued before
    // the next piece, not after this one, so that no copy's completion waits for a kernel.
    bool pause_due = false;
    Link load, store, returns;
    Link learn, check;  // fingerprinted loads; stores `if_changed` and compares
    std::unique_ptr<gpu::Fingerprinter> learner, checker;
    std::array<Link*, 5> links() { return {&load, &store, &returns, &learn, &check}; }
    Link& link_of(const Transfer& transfer) {
      if (transfer.direction == Direction::store) return store;
      return transfer.frame_elsewhere && returns.stream != nullptr ? returns : load;
    }
  };
  Status create_streams(PerDevice& device);
  Status create_records();
  void drop_records();
  Result<CUevent> take_event(Events& events) const;
  Status submit_one(Transfer& transfer);
  Status queue_copy(const Transfer& transfer, PerDevice& device);
  Status queue_peer_copy(const Transfer& transfer, const Link& link) const;
  Status queue_host_copy(const Transfer& transfer, PerDevice& device) const;
  Status submit_compare(Transfer& transfer, PerDevice& device);
  Status queue_record(const Transfer& transfer, PerDevice& device);
  Status queue_store_changed(const Transfer& transfer, PerDevice& device);
  Status wait_for(std::span<const CUevent> events, CUstream stream) const;
  CUdeviceptr address(SlotId slot) const;
  bool on_host() const { return config_.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA; }
  bool reached_by(std::size_t device) const { return (config_.reached_by >> device & 1) != 0; }
  void wait_for_streams() noexcept;
  Status poll_link(Link& link, std::vector<Completion>& completions);
  void shrink();
  void grow();
  bool make_wanted(std::unique_lock<std::mutex>& lock, std::uint64_t page_bytes);
  bool source_full() const { return std::chrono::steady_clock::now() < full_until_; }
  std::uint64_t next_wanted() const;  // page size of the next slot to create; 0: none
  bool make_one(std::unique_lock<std::mutex>& lock, std::uint64_t page_bytes);

  Config config_;
  TierInfo info_{.name = config_.name, .stream_ordered = true, .addressable = true};
  // The mover only.
  mutable SlotRecords records_;  // null if changes cannot be detected
  std::vector<PerDevice> devices_;

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  FramePool pool_;
  std::map<std::uint64_t, std::uint64_t> expected_;  // page size → slots to create ahead
  std::set<std::uint64_t> awaited_;                  // page sizes that allocate answered `later`
  std::optional<Error> growth_error_;
  std::uint64_t budgets_ = 0;  // number of set_budget calls
  // The source was out of memory: not asked again until then, or until set_budget.
  std::chrono::steady_clock::time_point full_until_{};
  bool stopping_ = false;
  std::thread grower_;
};

}  // namespace vmem::tiers
