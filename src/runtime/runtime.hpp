// The composition root: the only place that names concrete tiers. Puts driver, address space, streams, tiers, policy and mover together
// and offers the operations of the public API. Calls on resident memory stay in the calling thread; the rest goes to the mover.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/options.hpp"
#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "pagetable/address_space.hpp"
#include "pagetable/holds.hpp"
#include "peer/borrower.hpp"
#include "peer/lender.hpp"
#include "runtime/block_cache.hpp"
#include "runtime/pointer_tables.hpp"
#include "runtime/remote.hpp"
#include "runtime/suballocator.hpp"
#include "tiers/disk/disk_tier.hpp"
#include "tiers/disk/gds_reader.hpp"
#include "tiers/file/file_tier.hpp"
#include "tiers/near_tier.hpp"
#include "tiers/stacked_tier.hpp"
#include "topology/topology.hpp"

namespace vmem::runtime {

class NamedSpans;
// What a launch holds from before it is queued until after. Kept by the caller and used again: then nothing is allocated.
class LaunchHolds {
 public:
  struct Held {
    pagetable::Region* region;
    pagetable::Span span;  // as published: the region, or of a shared one the page
    std::uint32_t hold;
    std::uint32_t granule;  // in the span
    std::uint32_t life = 0;
    bool feared = false;  // not named, but a table that is named may lead there
    std::uint32_t first() const { return region->page_at(span.first()); }
    std::uint32_t count() const { return span.count() >> region->page_shift; }
  };
  // What tables may lead to, some of it named as well.
  std::span<const std::uintptr_t> feared() const { return feared_; }
  // Each thing by itself, though all fits: they are going to be held for long.
  void hold_each() { each_ = true; }

 private:
  friend class Runtime;
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::span<const Held> all() const { return held_; }
  void clear() {
    held_.clear();
    feared_.clear();
    everything_ = kNone;
    if (alone_) alone_ = {};
  }
  void add(const Held& held) { held_.push_back(held); }
  std::vector<Held> held_;
  std::vector<std::uintptr_t> feared_;
  std::uint32_t everything_ = kNone;  // the hold of all that there is, in place of the others
  NamedSpans* named_ = nullptr;
  bool each_ = false;
  bool tracked_ = true;  // what is used is logged
  pagetable::ThreadSlot* slot_ = nullptr;
  migration::StreamRecord* record_ = nullptr;
  std::unique_lock<std::mutex> alone_;  // strict: no other launch is under way
};

class Runtime final : private SlabSource {
 public:
  static Result<std::unique_ptr<Runtime>> create(const Options& options);
  // On a driver made by the caller (tests: a decorated one).
  static Result<std::unique_ptr<Runtime>> create(const Options& options, std::shared_ptr<const gpu::Driver> driver);
  ~Runtime() override;

  // Ends all allocations when their last uses are complete. Errors: IN_USE; a lost device is not an error here.
  Status shut_down();

  Result<void*> allocate(std::size_t bytes, int device, vmem_stream stream);
  // Read-only memory whose pages are read from the file when they are used. `bytes` of 0: to its end.
  Result<void*> map_file(const std::string& path, std::uint64_t offset, std::uint64_t bytes, int device);
  Status free(void* pointer, vmem_stream stream);
  Status acquire(std::span<const vmem_range> ranges, vmem_stream stream);
  Status release(std::span<const vmem_range> ranges, vmem_stream stream);
  Status close_stream(vmem_stream stream);
  void expect_capture(vmem_stream stream) { streams_->expect_capture(stream); }
  Status prefetch(const void* pointer, std::size_t bytes);
  Status advise(const void* pointer, std::size_t bytes, vmem_advice advice);
  Status copy(void* to, const void* from, std::size_t bytes, vmem_stream stream);
  // `bytes` in elements of 1, 2 or 4 bytes, each set to `value`.
  Status fill(void* pointer, std::uint32_t value, std::size_t element_bytes, std::size_t bytes, vmem_stream stream);
  Status read(void* host, const void* pointer, std::size_t bytes);
  Status write(void* pointer, const void* host, std::size_t bytes);
  Status query(const void* pointer, vmem_pointer_info& info);
  Status statistics(vmem_statistics& out);
  // To stderr, where the option call_times asks for it: those since the last time.
  void tell_call_times() const;
  // Whether there was something to keep.
  bool quarantine();
  Status quiesce();
  // Programs that do not call vmem (undeclared.cpp). Allocations are cached when freed.
  struct Allocation {
    std::uintptr_t base = 0;
    std::uint64_t bytes = 0;
    int device = 0;  // ordinal
  };
  Result<void*> allocate_undeclared(std::size_t bytes, int device, vmem_stream stream);
  Result<void*> allocate_undeclared(std::size_t bytes, int device, const StreamId& stream);
  // No stream: all work that used the allocation is complete.
  Status free_undeclared(void* pointer, std::optional<vmem_stream> stream);
  Status free_undeclared(void* pointer, const std::optional<StreamId>& stream);
  // Which stream a handle names where that context is the current one.
  static StreamId identify(vmem_stream stream, CUcontext context);
  Status record_stream(void* pointer, vmem_stream stream);
  // In drained mode a launch may reach anything, whatever it names: no page moves as long as this is held, by a kernel's launch or a graph's
  // from before begin_launch until it is queued.
  std::shared_lock<std::shared_mutex> hold_back_moves();
  // A launch on `stream` names these addresses, and with each the whole allocation it lies in; addresses in no live allocation
  // are passed over. What is named is in place before `begin` returns, and until `end`; both by the thread that launches.
  // `fills_tables`: it may write what it names into small allocations that it names, too (pointer_tables.hpp).
  Status begin_launch(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables,
                      LaunchHolds& holds);
  // The same for a launch of a function that fills no tables, whatever it names (which may help, where it is known), if that is all at
  // hand and nobody is to know of it, as long as all fits. False: nothing is held, and begin_launch is to be called.
  bool begin_launch_of_anything(vmem_stream stream, const std::optional<std::span<const std::uintptr_t>>& named,
                                LaunchHolds& holds);
  // Whether that is worth trying.
  bool all_at_hand() const { return mover_->all_at_hand() != 0; }
  Status end_launch(LaunchHolds& holds);
  void abandon_launch(LaunchHolds& holds);  // it was not queued
  // The same for work that is only recorded, into a graph: what it names is mapped, its bytes may be elsewhere. Then abandon_launch.
  Status begin_recording(std::span<const std::uintptr_t> addresses, vmem_stream stream, LaunchHolds& holds);
  // What the calling thread knows of pointer tables; none if they are not followed, or the thread is ending.
  PointerTables* pointer_tables() const;
  // The allocation may be reached by work that does not name it: it stays mapped where it is until it is freed (of small allocations, the
  // pages). Errors: OUT_OF_MEMORY, when too much would be kept; it moves as before then.
  Status keep(std::uintptr_t address);
  std::optional<Allocation> allocation_at(std::uintptr_t address) const;
  // The bases of those that any of the words points into, each once.
  std::vector<std::uintptr_t> allocations_among(std::span<const std::uintptr_t> words) const;
  // For people: what is at an address of the address space, and what happened there lately.
  std::string describe(std::uintptr_t address) const;
  CUcontext context_of(int ordinal) const;  // null: not in use
  Status synchronize(int ordinal) const;    // waits for all work of a device
  // What can be allocated on a device, at most, and what of it is not allocated.
  struct Capacity {
    std::uint64_t free_bytes = 0, total_bytes = 0;
  };
  Result<Capacity> capacity(int ordinal);
  Status empty_cache();
  std::uint64_t cached_bytes(int ordinal) const;  // freed and kept
  bool is_small(std::uintptr_t address) const;    // it shares pages with others
  bool strict() const { return options_.strict; }
  bool drained() const { return options_.drained; }
  bool follows_tables() const { return options_.window != 0 && !options_.drained; }
  std::uintptr_t space_base() const { return space_->base(); }
  std::uint64_t space_bytes() const { return space_->bytes(); }
  const gpu::Driver& driver() const { return *driver_; }
  // Whether all that a launch names lies in HBM: what the driver's copies need.
  static bool all_in_hbm(const LaunchHolds& holds);
  // Of memory that the caller holds: whether the page is host memory, mapped in HBM's place.
  bool in_place(std::uintptr_t address) const;
  // The process ends: the mover stops, and the GPU is not touched any more.
  void stop() { mover_->stop(); }

  // A thread's own call found the device lost. True if it is: from now on every thread hears so.
  bool report_loss(const Error& error);

 private:
  struct Device {
    int ordinal = 0;
    CUdevice handle = 0;
    CUcontext context = nullptr;
    CUstream io = nullptr;  // vmem_read and vmem_write
    std::mutex io_mutex;
  };
  // A GPU whose memory takes pages of others'.
  struct Lender {
    int ordinal = 0;
    Device device;
    std::optional<std::size_t> own;  // it is devices_[own]: then `device` is not opened
    std::uint32_t reached_by = 0;    // bit i: devices_[i]
    std::uint64_t bytes = 0;
    std::unique_ptr<peer::Borrower> borrower;  // of another process
    std::unique_ptr<tiers::NearTier> memory;
  };
  // What other processes borrow of devices_[own].
  struct LendingOut {
    std::size_t own = 0;
    std::uint64_t most_bytes = 0;
    std::unique_ptr<peer::Lender> lender;
  };
  // A range of one allocation, in pages.
  struct Located {
    pagetable::Region* region = nullptr;
    std::uint32_t first = 0;
    std::uint32_t count = 0;
  };
  enum class Reach { hit, attention, miss };

  Runtime(Options options, std::shared_ptr<const gpu::Driver> driver);
  Status start();
  Status open_devices();
  Status open_device(int ordinal, Device& device) const;
  Status reserve_space();
  struct FreeMemory {
    std::uint64_t free_bytes = 0, total_bytes = 0;
  };
  Result<FreeMemory> free_memory(const Device& device) const;
  Result<std::uint64_t> hbm_budget(const Device& device) const;
  Result<std::uint64_t> host_budget() const;
  Status start_host_tier();
  Status start_lender(const LendingDevice& wanted);
  Status borrow(const LendingDevice& wanted, Lender& lender) const;
  Status start_lending(const LentDevice& wanted);
  static migration::LentMemory lent_memory(const Lender& lender);
  static migration::LentOut lent_out(const LendingOut& out);
  std::vector<std::uint8_t> lenders_of(int ordinal, std::size_t index) const;
  Result<std::uint64_t> lent_bytes(const LendingDevice& wanted, const Lender& lender) const;
  void close(Device& device) const;
  Status start_gds();
  Status start_disk_tier();
  Status start_remote_tier();
  tiers::Tier* tier_below();
  void start_file_tier();
  Status start_mover();
  std::vector<migration::MoverDevice> mover_devices() const;
  void unmap_what_is_left();
  void wake_mover();

  Result<pagetable::ThreadSlot*> thread_slot();
  Result<Located> locate(const void* pointer, std::size_t bytes) const;
  std::uintptr_t base_of(const pagetable::Region& region) const {
    return space_->address_of(region.first.index) + region.head_bytes;
  }
  Result<pagetable::Region*> live_region(std::uintptr_t address) const;
  Result<int> device_index(int ordinal) const;
  // acquire.cpp
  static Reach reach(const Located& located, pagetable::Access access);
  const pagetable::ThreadSlot* known_slot() const;
  Status ensure_context() const;
  static Status check_device(const migration::StreamRecord& record);
  Status check_stream(const migration::StreamRecord& record, CUstream stream) const;
  Status acquire_each(std::span<const vmem_range> ranges, CUstream stream, pagetable::ThreadSlot& slot,
                      const migration::StreamRecord& record, std::span<std::uint32_t> holds, std::span<Located> located,
                      std::size_t& published);
  Status acquire_published(std::span<const vmem_range> ranges, std::span<const Located> located, bool miss,
                           const migration::StreamRecord& record, CUstream stream);
  Status bring_in(std::span<const vmem_range> ranges, std::span<const Located> located);
  Status wait_until_ready(const Located& located, CUstream stream);
  Status open_to(const Located& located, const migration::StreamRecord& record);
  // copy.cpp
  Status copy_piece(void* to, const void* from, std::size_t bytes, CUstream stream);
  CUresult fill_elements(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                         CUstream stream) const;
  Status fill_piece(CUdeviceptr address, std::uint32_t value, std::size_t element_bytes, std::size_t bytes,
                    CUstream stream);
  std::size_t piece_bytes(const void* pointer, std::size_t bytes) const;
  template <class Copy>
  Status each_page(const void* pointer, std::size_t bytes, bool write, Copy&& copy);
  Status copy_device(pagetable::Region& region, void* host, CUdeviceptr window, std::size_t bytes, bool write);

  // SlabSource
  Result<std::uintptr_t> allocate_slabs(int device, std::size_t bytes) override;
  std::size_t spare_bytes(int device) const override;
  Status free_slabs(std::uintptr_t address) override;
  std::uintptr_t context() noexcept override;
  Result<std::uint64_t> mark(const StreamId& stream) override;
  bool complete(std::uint64_t mark) override;
  Status refuse_held_block(std::uintptr_t base);
  enum class RegionKind { declared, shared, undeclared };
  Result<pagetable::Region*> allocate_region(std::size_t bytes, int device, RegionKind kind);
  Result<pagetable::Region*> make_region(migration::AllocateRequest& request);
  void announce(std::uintptr_t address, bool feared, LaunchHolds& holds);
  void announce_small(pagetable::Region& region, std::uintptr_t address, bool feared, LaunchHolds& holds);
  void announce_span(pagetable::Region& region, std::uint32_t granule, std::uintptr_t address, bool feared,
                     LaunchHolds& holds);
  bool find_all(std::span<const std::uintptr_t> addresses, PointerTables& tables, bool fills_tables,
                LaunchHolds& holds);
  bool at_hand(pagetable::Region& region, std::uintptr_t address, bool feared, std::uint32_t device) const;
  Reach look(LaunchHolds& holds);
  Status make_ready(Reach worst, vmem_stream stream, LaunchHolds& holds);
  static void withdraw(const LaunchHolds& holds);
  Status bring_in(const LaunchHolds& holds, bool run);
  Status hide_others();
  Status settle(pagetable::Region& region);
  Result<std::unique_lock<std::shared_mutex>> drain();
  Status finish_alone(migration::StreamRecord& record) const;
  Status release_freed(int device, std::uint64_t most);
  Status release_all_freed();
  bool set_dead(pagetable::Region& region, bool dead);
  Result<std::vector<std::uint64_t>> marks_of_others(std::uintptr_t base);
  Status wait_for_others(std::uintptr_t base, CUstream stream);
  Status close_undeclared(vmem_stream stream);
  Status free_region(pagetable::Region& region, std::uint32_t first_granule, vmem_stream stream);

  const Options options_;
  const std::shared_ptr<const gpu::Driver> driver_;
  std::vector<std::unique_ptr<Device>> devices_;
  CUdeviceptr reserved_ = 0;
  std::uint64_t reserved_bytes_ = 0;
  std::unique_ptr<pagetable::AddressSpace> space_;
  std::shared_ptr<pagetable::ThreadRegistry> threads_ = std::make_shared<pagetable::ThreadRegistry>();
  std::unique_ptr<migration::StreamTable> streams_;
  topology::Topology topology_;  // constant once started
  std::unique_ptr<tiers::NearTier> host_;
  std::vector<std::unique_ptr<Lender>> lenders_;  // with the option peers
  std::vector<LendingOut> lending_out_;           // with the option lend
  std::shared_ptr<tiers::GdsReader> gds_;         // unless the option gds is off
  std::unique_ptr<tiers::DiskTier> disk_;         // with the option nvme
  std::unique_ptr<Remote> remote_;                // with the option remote
  std::unique_ptr<tiers::StackedTier> below_;     // with both
  std::unique_ptr<tiers::FileTier> files_;
  std::mutex mover_life_;  // protects mover_ from its creation's and destruction's side, for the host tier's thread
  std::unique_ptr<migration::Mover> mover_;
  std::unique_ptr<Suballocator> small_;
  std::unique_ptr<BlockCache> freed_;
  std::mutex strict_mutex_;          // held from the beginning of a launch to its completion
  std::shared_mutex drained_mutex_;  // shared: launches; alone: pages that move
  std::mutex recorded_mutex_;
  std::mutex draining_mutex_;  // held while drained_mutex_ is being taken alone
  // Streams beside their own that use allocations; of those that were closed, marks.
  struct OtherUses {
    std::vector<StreamId> streams;
    std::vector<std::uint64_t> marks;
  };
  std::unordered_map<std::uintptr_t, OtherUses> recorded_;
  std::atomic<bool> any_recorded_{false};  // ever: most programs have none, and free often
  bool ended_ = false;                     // by shut_down; only the suballocator's end follows
};

// The process's runtime, between vmem_init and vmem_shutdown; otherwise null.
Runtime* live_runtime() noexcept;

}  // namespace vmem::runtime
