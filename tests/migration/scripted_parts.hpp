// The mover's surroundings under a script: GPU work that ends when the test says so, tiers that
// hold transfers back, refuse or lose pages, and a policy that offers what the test lists.
#pragma once

#include <atomic>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "gpu/driver.hpp"
#include "migration/policy/policy.hpp"
#include "tiers/near_tier.hpp"
#include "tiers/page_source.hpp"

namespace vmem::migration {

// A function of the emulated driver that the driver's table does not have.
void* emulated_symbol(const gpu::Driver& driver, const char* name);

// Runs `work` in stream order.
void enqueue(const gpu::Driver& driver, CUstream stream, std::function<void()> work);

// Blocks a stream from construction until open() or destruction.
class Gate {
 public:
  Gate(const gpu::Driver& driver, CUstream stream);
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open();

 private:
  std::shared_ptr<std::atomic<std::uint32_t>> open_ = std::make_shared<std::atomic<std::uint32_t>>(0);
};

// A near tier whose transfers wait for the test, with scripted outcomes and a callback inside
// allocate().
class ScriptedTier final : public tiers::Tier,
                           public tiers::InPlaceTier,
                           public tiers::ComparingTier,
                           public tiers::YieldingTier {
 public:
  ScriptedTier(const gpu::Driver& driver, std::vector<CUcontext> contexts, std::unique_ptr<tiers::NearTier> inner);
  ~ScriptedTier() override;

  // Transfers submitted from now on start only after `let_go`.
  void hold_back(tiers::Direction direction);
  void let_go(tiers::Direction direction);
  // The next transfer of `direction` runs, but reports `outcome`.
  void answer_next(tiers::Direction direction, tiers::Outcome outcome) { answers_[direction].push_back(outcome); }
  int later_allocations = 0;          // number of allocations to answer with `later`
  std::function<void()> on_allocate;  // called once, at the next allocation
  std::function<void(const tiers::Transfer&)> on_submit;
  bool grows_at_once = false;  // creates wanted slots in each call: NearTier::Growth::by_owner
  std::uint64_t submitted(tiers::Direction direction) { return counts_[direction]; }
  // Conditional stores and comparisons, which `submitted` does not count.
  std::uint64_t checks() const { return checks_; }
  tiers::NearTier& inner() { return *inner_; }

  const tiers::TierInfo& info() const noexcept override { return inner_->info(); }
  tiers::TierUsage usage() const override { return inner_->usage(); }
  void expect(std::uint64_t page_bytes, std::uint64_t count) override;
  void set_budget(std::uint64_t bytes);
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override { inner_->release(slot); }
  std::optional<gpu::Fingerprint> fingerprint(tiers::SlotId slot) const override { return inner_->fingerprint(slot); }
  bool can_compare(int device) const override { return inner_->can_compare(device); }
  void make_way(int device, tiers::Direction direction) override {
    yields = direction;
    inner_->make_way(device, direction);
  }
  tiers::Direction yields = tiers::Direction::store;  // as last told
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  tiers::Finished finish() noexcept override { return inner_->finish(); }
  CUmemGenericAllocationHandle handle(tiers::SlotId slot) const override { return inner_->handle(slot); }
  std::byte* host_address(tiers::SlotId slot, pagetable::Access access) const override {
    return inner_->host_address(slot, access);
  }
  CUdeviceptr device_address(tiers::SlotId slot, pagetable::Access access) const override {
    return inner_->device_address(slot, access);
  }

 private:
  struct Hold {
    CUstream stream = nullptr;
    std::unique_ptr<Gate> gate;
  };
  void delay(Hold& hold, tiers::Transfer& transfer);
  void let_grow() const;

  const gpu::Driver& driver_;
  std::vector<CUcontext> contexts_;
  std::unique_ptr<tiers::NearTier> inner_;
  std::map<tiers::Direction, std::deque<tiers::Outcome>> answers_;
  std::map<tiers::Direction, Hold> holds_;
  std::map<tiers::Direction, std::uint64_t> counts_;
  std::uint64_t checks_ = 0;
  std::map<std::uint64_t, tiers::Outcome> outcomes_;  // by transfer id
  std::vector<CUevent> events_;
};

// A tier below host memory, kept in memory. Each poll completes at most one transfer whose
// direction is not held back. A store fails the test if its source changed since it was submitted:
// a disk would keep torn data.
class ScriptedSpill final : public tiers::Tier, public tiers::FrameLoadingTier, public tiers::QueueingTier {
 public:
  explicit ScriptedSpill(std::uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  void hold_back(tiers::Direction direction) { held_.insert(direction); }
  void let_go() {
    held_.clear();
    held_queue.reset();
  }
  std::uint32_t queues = 1;                 // of transfers, by slot
  std::optional<std::uint32_t> held_queue;  // whose transfers are held back
  std::vector<std::uint64_t> hurried;
  std::uint32_t queue(tiers::SlotId slot) const override { return slot % queues; }
  void hurry(std::uint64_t transfer) override { hurried.push_back(transfer); }
  // The next transfer of `direction` ends with `outcome` and moves no bytes.
  void answer_next(tiers::Direction direction, tiers::Outcome outcome, vmem_status status = VMEM_ERROR_DRIVER) {
    answers_[direction].push_back({outcome, status});
  }
  void forget_answers() { answers_.clear(); }
  bool full = false;             // stores fail for lack of room, whatever the budget
  bool stores_fail = false;      // stores fail with an I/O error
  bool out_of_service = false;   // allocations fail with an I/O error
  bool away = false;             // allocations time out, as for a node that does not answer
  bool away_beyond = false;      // as `away`, but only once the budget is used up
  int later_allocations = 0;     // number of allocations to answer with `later`
  std::uint32_t polls_each = 1;  // polls per transfer
  std::uint64_t submitted(tiers::Direction direction) { return counts_[direction]; }
  bool straight = false;          // pages can be read directly into frames
  std::uint64_t into_frames = 0;  // loads directly into frames
  int wrong_bytes = 0;            // number of these loads to corrupt
  std::function<void(const tiers::Transfer&)> on_submit;
  void needs(std::uint32_t pages) { info_.busy_pages = pages; }

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {budget_bytes_, used_bytes_, 0}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override;
  bool loads_into_frames(tiers::SlotId, int) const override { return straight; }
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  tiers::Finished finish() noexcept override { return tiers::Finished::all_ended; }

 private:
  struct Pending {
    tiers::Transfer transfer;
    std::vector<std::byte> bytes;  // of a store, copied when it was submitted
  };
  struct Answer {
    tiers::Outcome outcome;
    vmem_status status;
  };
  struct Stored {
    std::uint64_t page_bytes = 0;
    std::uint64_t version = 0;
    std::uint32_t granule = 0;
    std::vector<std::byte> bytes;
  };
  tiers::Completion carry_out(Pending& pending);

  tiers::TierInfo info_{.name = "scripted"};
  const std::uint64_t budget_bytes_;
  std::uint64_t used_bytes_ = 0;
  tiers::SlotId next_slot_ = 100;
  std::map<tiers::SlotId, Stored> slots_;
  std::deque<Pending> pending_;
  std::set<tiers::Direction> held_;
  std::map<tiers::Direction, std::deque<Answer>> answers_;
  std::map<tiers::Direction, std::uint64_t> counts_;
  std::uint32_t polls_ = 0;
};

// The source of read-only regions: every byte of slot n is n (mod 256). Each poll completes at most
// one load, unless held back.
class ScriptedFiles final : public tiers::Tier, public tiers::FrameLoadingTier {
 public:
  std::shared_ptr<tiers::PageSource> map(std::uint64_t bytes);
  static unsigned char value_of(tiers::SlotId slot) { return static_cast<unsigned char>(slot); }

  void hold_back() { held_ = true; }
  void let_go() { held_ = false; }
  // The next load fails with `outcome` and the message `why`, and moves no bytes.
  void answer_next(tiers::Outcome outcome, std::string why) { answers_.push_back({outcome, std::move(why)}); }
  std::uint64_t loads = 0;        // submitted loads
  bool straight = false;          // pages can be read directly into frames
  std::uint64_t into_frames = 0;  // loads directly into frames
  std::uint32_t polls_each = 1;
  std::uint32_t sources = 0;  // live page sources
  std::function<void(const tiers::Transfer&)> on_submit;

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t) override { return tiers::SlotGrant{}; }
  void release(tiers::SlotId) override;
  bool loads_into_frames(tiers::SlotId, int) const override { return straight; }
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  tiers::Finished finish() noexcept override { return tiers::Finished::all_ended; }

 private:
  class Source;
  static constexpr tiers::TierInfo info_{.name = "files"};
  std::deque<tiers::Transfer> pending_;
  std::deque<std::pair<tiers::Outcome, std::string>> answers_;
  tiers::SlotId next_slot_ = 0;
  std::uint32_t polls_ = 0;
  bool held_ = false;
};

// Offers victims in the order of `offer`, or of arrival if that is empty, and prefetches the pages
// of `ahead`. Records the calls it receives.
class ScriptedPolicy final : public Policy {
 public:
  std::vector<PageId> offer;   // if not empty: the victims, in this order
  std::deque<PageId> ahead;    // prefetches, each offered once
  std::deque<PageId> leaving;  // to be evicted ahead, offered as long as they are resident
  std::function<void(const Use&)> on_used;
  std::set<PageId> resident;
  std::vector<Use> uses;
  std::set<RegionId> live, distant;
  int victim_queries = 0;

  void region_begins(const RegionShape& region) override {
    live.insert(region.id);
    if (region.distant) distant.insert(region.id);
  }
  void pages_dead(PageId, std::uint32_t, bool) override {}
  void region_ends(RegionId region) override;
  void page_arrived(PageId page, Cause cause) override;
  void page_left(PageId page) override;
  void page_prefers(PageId, Preference) override {}
  void used(const Use& use) override;
  std::size_t victims(const VictimQuery& query, std::span<PageId> out) override;
  std::size_t prefetches(const PrefetchQuery& query, std::span<PageId> out) override;
  std::size_t leaves(const PrefetchQuery& query, std::span<PageId> out) override;
  std::uint64_t metadata_bytes() const override { return live.size() * sizeof(RegionId); }

 private:
  std::vector<PageId> arrivals_;
  std::size_t offered_ = 0;
};

}  // namespace vmem::migration
