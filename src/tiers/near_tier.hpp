// Memory near HBM, which the GPU copies to and from in stream order and can use in place at a page's own address: pinned host memory,
// or another GPU's HBM over a peer link. Both are driver handles. Making one of host memory costs about 70 to 150 µs a MiB (the kernel
// clears and pins the memory), of HBM about 30 µs whatever its size; a thread makes them ahead of need.
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
#include "tiers/tier.hpp"

namespace vmem::tiers {

class NearTier final : public Tier, public InPlaceTier {
 public:
  struct Device {
    CUcontext context;
    CUdevice ordinal;
  };
  struct Config {
    std::shared_ptr<const gpu::Driver> driver;
    std::vector<Device> devices;               // whose HBM pages come from; transfers name them by index
    std::uint32_t reached_by = ~0u;            // bit i: devices[i] can reach this memory
    CUmemLocation location = gpu::on_host(0);  // or a device's HBM
    std::string name = "host";                 // of the tier: "host", "peer 1"
    std::uint64_t budget_bytes = 0;
    std::uint64_t largest_budget_bytes = 0;  // that set_budget may ask for; 0: budget_bytes
    HandleSource* source = nullptr;          // of the memory; null: the driver. Outlives the tier
    std::function<void()> on_ready;          // called by the growing thread when a slot that was asked for exists
  };
  // Errors: those of creating streams.
  static Result<std::unique_ptr<NearTier>> create(Config config);
  ~NearTier() override;

  // Any thread. Less than is used: usage() says so, and slots that are released are given back to the driver until it fits.
  void set_budget(std::uint64_t bytes);

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  void expect(std::uint64_t page_bytes, std::uint64_t count) override;
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  std::optional<gpu::Fingerprint> fingerprint(SlotId slot) const override;
  bool can_compare(int device) const override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  void finish() noexcept override;
  CUmemGenericAllocationHandle handle(SlotId slot) const override;
  std::byte* host_address(SlotId slot, pagetable::Access access) const override;
  CUdeviceptr device_address(SlotId slot, pagetable::Access access) const override;

 private:
  explicit NearTier(Config config);
  struct InFlight {
    std::uint64_t id;
    CUevent done;
    std::optional<SlotId> asked = {};            // whether the slot's page has changed
    std::optional<SlotId> learned = {};          // of which slot it makes the fingerprint
    std::optional<std::uint32_t> compared = {};  // with which of compares_
  };
  struct Link {  // what runs in order on one stream of one device
    CUstream stream = nullptr;
    std::deque<InFlight> in_flight;
  };
  struct PerDevice {
    CUcontext context = nullptr;
    gpu::Stream load_stream, store_stream;
    gpu::DeviceMemory pause;  // a word that is set between the pieces of stores
    bool pause_due =
        false;  // a piece was queued since; the pause goes before the next one, so that no store waits for a kernel after it
    Link load, store;
    Link learn, check;  // loads that are fingerprinted; stores of what changed
    std::unique_ptr<gpu::Fingerprinter> learner, checker;
    std::vector<CUevent> spare_events;
    std::array<Link*, 4> links() { return {&load, &store, &learn, &check}; }
  };
  // What the mover knows of a slot.
  struct SlotState {
    bool known = false;          // its record has the fingerprint of its bytes
    std::uint32_t changes = 0;   // of the record, seen so far
    std::uint64_t learning = 0;  // the load that makes that fingerprint, as long as it runs
  };
  Status create_streams(PerDevice& device);
  Status create_records();
  void drop_records();
  Result<CUevent> take_event(PerDevice& device);
  Status submit_one(Transfer& transfer);
  Status queue_copy(const Transfer& transfer, PerDevice& device);
  Status queue_store(const Transfer& transfer, PerDevice& device) const;
  Status submit_compare(Transfer& transfer, PerDevice& device);
  Status queue_record(const Transfer& transfer, PerDevice& device);
  Status wait_for(std::span<const CUevent> events, CUstream stream) const;
  bool known(SlotId slot) const { return slot < slots_.size() && slots_[slot].known; }
  void forget(SlotId slot) const;
  gpu::SlotRecord& record(SlotId slot) const { return reinterpret_cast<gpu::SlotRecord*>(records_.data())[slot]; }
  CUdeviceptr address(SlotId slot) const;
  bool on_host() const { return config_.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA; }
  bool reached_by(std::size_t device) const { return (config_.reached_by >> device & 1) != 0; }
  Status poll_link(PerDevice& device, Link& link, std::vector<Completion>& completions);
  void shrink();
  void grow();
  bool source_full() const { return std::chrono::steady_clock::now() < full_until_; }
  std::uint64_t next_wanted() const;  // page size of the next slot to make, 0: none
  bool make_one(std::unique_lock<std::mutex>& lock, std::uint64_t page_bytes);

  Config config_;
  TierInfo info_{.name = config_.name, .stream_ordered = true, .addressable = true};
  // The mover's.
  gpu::PinnedBuffer records_;             // one a slot, and behind them those of frames that are compared
  std::vector<std::uint32_t> compares_;   // of the latter those that are free
  mutable std::vector<SlotState> slots_;  // as many; empty when changes cannot be told
  std::vector<PerDevice> devices_;

  mutable std::mutex mutex_;  // below
  std::condition_variable changed_;
  FramePool pool_;
  std::map<std::uint64_t, std::uint64_t> expected_;  // page size → slots wanted to exist
  std::set<std::uint64_t> asked_;                    // page sizes of which an allocation was answered `later`
  std::optional<Error> growth_error_;
  std::uint64_t budgets_ = 0;  // that were set
  // The source had nothing: it is asked again then, or with another budget.
  std::chrono::steady_clock::time_point full_until_{};
  bool stopping_ = false;
  std::thread grower_;
};

}  // namespace vmem::tiers
