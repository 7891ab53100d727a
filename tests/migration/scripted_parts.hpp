// What a script controls of the mover's surroundings: GPU work that ends when the test says so, a tier that can hold back,
// refuse or lose, and a policy that offers what the test lists.
#pragma once

#include <atomic>
#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "gpu/driver.hpp"
#include "migration/policy/policy.hpp"
#include "tiers/near_tier.hpp"
#include "tiers/page_source.hpp"

namespace vmem::migration {

// Runs `work` on the stream's worker, in stream order.
void enqueue(const gpu::Driver& driver, CUstream stream, std::function<void()> work);

// Holds a stream from its closing until it is opened; opened at the latest when it ends.
class Gate {
 public:
  Gate(const gpu::Driver& driver, CUstream stream);
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open();

 private:
  std::shared_ptr<std::atomic<bool>> open_ = std::make_shared<std::atomic<bool>>(false);
};

// A tier of near memory, with transfers that wait for the test, answers of the test's choosing, and a look inside calls.
class ScriptedTier final : public tiers::Tier, public tiers::InPlaceTier {
 public:
  ScriptedTier(const gpu::Driver& driver, std::vector<CUcontext> contexts, std::unique_ptr<tiers::NearTier> inner);
  ~ScriptedTier() override;

  // Transfers submitted from now on start when `let_go` is called.
  void hold_back(tiers::Direction direction);
  void let_go(tiers::Direction direction);
  // The next transfer of a direction runs, but its outcome is this.
  void answer_next(tiers::Direction direction, tiers::Outcome outcome) { answers_[direction].push_back(outcome); }
  int later_allocations = 0;          // so many allocations are answered `later`
  std::function<void()> on_allocate;  // called at the next
  std::uint64_t submitted(tiers::Direction direction) { return counts_[direction]; }
  std::uint64_t checks() const { return checks_; }  // stores of what changed only, which `submitted` does not count
  tiers::NearTier& inner() { return *inner_; }

  const tiers::TierInfo& info() const noexcept override { return inner_->info(); }
  tiers::TierUsage usage() const override { return inner_->usage(); }
  void expect(std::uint64_t page_bytes, std::uint64_t count) override { inner_->expect(page_bytes, count); }
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override { inner_->release(slot); }
  std::optional<gpu::Fingerprint> fingerprint(tiers::SlotId slot) const override { return inner_->fingerprint(slot); }
  bool can_compare(int device) const override { return inner_->can_compare(device); }
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  void finish() noexcept override { inner_->finish(); }
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

  const gpu::Driver& driver_;
  std::vector<CUcontext> contexts_;
  std::unique_ptr<tiers::NearTier> inner_;
  std::map<tiers::Direction, std::deque<tiers::Outcome>> answers_;
  std::map<tiers::Direction, Hold> holds_;
  std::map<tiers::Direction, std::uint64_t> counts_;
  std::uint64_t checks_ = 0;
  std::map<std::uint64_t, tiers::Outcome> outcomes_;  // by transfer
  std::vector<CUevent> events_;
};

// A tier below host memory, in memory, that moves one transfer at a poll, when the test lets it. It looks twice at what it stores: what
// changes in a slot meanwhile would be torn on a disk.
class ScriptedSpill final : public tiers::Tier {
 public:
  explicit ScriptedSpill(std::uint64_t budget_bytes) : budget_bytes_(budget_bytes) {}

  void hold_back(tiers::Direction direction) { held_.insert(direction); }
  void let_go() { held_.clear(); }
  // The next transfer of a direction ends so, and moves nothing.
  void answer_next(tiers::Direction direction, tiers::Outcome outcome, vmem_status status = VMEM_ERROR_DRIVER) {
    answers_[direction].push_back({outcome, status});
  }
  void forget_answers() { answers_.clear(); }
  bool full = false;             // what is stored finds no room, whatever the budget says
  bool stores_fail = false;      // for an error of the medium
  bool out_of_service = false;   // allocations fail for it, too
  bool away = false;             // likewise, as where a node does not answer now
  bool away_beyond = false;      // where the budget is used up, as where another node does not answer now
  int later_allocations = 0;     // so many allocations are answered `later`
  std::uint32_t polls_each = 1;  // how many polls a transfer takes
  std::uint64_t submitted(tiers::Direction direction) { return counts_[direction]; }
  bool straight = false;          // pages can be read straight into frames
  std::uint64_t into_frames = 0;  // loads of that kind
  int wrong_bytes = 0;            // so many of these bring something else
  void needs(std::uint32_t pages) { info_.busy_pages = pages; }

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {budget_bytes_, used_bytes_, 0}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override;
  bool reaches(tiers::SlotId, int) const override { return straight; }
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  void finish() noexcept override {}

 private:
  struct Pending {
    tiers::Transfer transfer;
    std::vector<std::byte> bytes;  // of a store, as they were when it was submitted
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

// What read-only regions are read from: each of a slot's bytes is the slot's number. One transfer at a poll, when the test lets it.
class ScriptedFiles final : public tiers::Tier {
 public:
  std::shared_ptr<tiers::PageSource> map(std::uint64_t bytes);
  static unsigned char value_of(tiers::SlotId slot) { return static_cast<unsigned char>(slot); }

  void hold_back() { held_ = true; }
  void let_go() { held_ = false; }
  // The next load brings nothing but this.
  void answer_next(tiers::Outcome outcome, std::string why) { answers_.push_back({outcome, std::move(why)}); }
  std::uint64_t loads = 0;        // submitted
  bool straight = false;          // pages can be read straight into frames
  std::uint64_t into_frames = 0;  // loads of that kind
  std::uint32_t polls_each = 1;
  std::uint32_t sources = 0;  // that live

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t) override { return tiers::SlotGrant{}; }
  void release(tiers::SlotId) override;
  bool reaches(tiers::SlotId, int) const override { return straight; }
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  void finish() noexcept override {}

 private:
  class Source;
  static constexpr tiers::TierInfo info_{.name = "files"};
  std::deque<tiers::Transfer> pending_;
  std::deque<std::pair<tiers::Outcome, std::string>> answers_;
  tiers::SlotId next_slot_ = 0;
  std::uint32_t polls_ = 0;
  bool held_ = false;
};

// Offers resident pages in the order of their arrival, or what `offer` lists; fetches ahead what `ahead` lists. Records what it
// was told.
class ScriptedPolicy final : public Policy {
 public:
  std::vector<PageId> offer;   // if not empty: the victims, in this order
  std::deque<PageId> ahead;    // prefetches, given out once
  std::deque<PageId> leaving;  // to be given up ahead, offered as long as they are resident
  std::function<void(const Use&)> on_used;
  std::set<PageId> resident;
  std::vector<Use> uses;
  std::set<RegionId> live;
  int victim_queries = 0;

  void region_begins(const RegionShape& region) override { live.insert(region.id); }
  void region_dead(RegionId, bool) override {}
  void region_ends(RegionId region) override;
  void page_arrived(PageId page, bool prefetched) override;
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
