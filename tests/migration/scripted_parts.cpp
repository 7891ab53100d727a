#include "migration/scripted_parts.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "gpu/emu/emu.h"

namespace vmem::migration {

using tiers::Direction;
using tiers::Outcome;

void* emulated_symbol(const gpu::Driver& driver, const char* name) {
  void* const library = ::dlopen(driver.path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : ::dlsym(library, name);
}

void enqueue(const gpu::Driver& driver, CUstream stream, std::function<void()> work) {
  const auto run = [](void* data) {
    const std::unique_ptr<std::function<void()>> owned(static_cast<std::function<void()>*>(data));
    (*owned)();
  };
  ASSERT_EQ(driver->cuLaunchHostFunc(stream, run, new std::function<void()>(std::move(work))), CUDA_SUCCESS);
}

Gate::Gate(const gpu::Driver& driver, CUstream stream) {
  const auto hold = reinterpret_cast<decltype(&vmem_emu_hold)>(emulated_symbol(driver, "vmem_emu_hold"));
  EXPECT_EQ(hold(stream, reinterpret_cast<const std::uint32_t*>(open_.get())), 0);
  enqueue(driver, stream, [word = open_] {});  // keeps the word until the stream goes on
}

void Gate::open() { open_->store(1); }

namespace {

// The driver is emulated, so a frame's window is memory of this process.
std::byte* destination(const tiers::Transfer& transfer) {
  return transfer.host != nullptr ? transfer.host : reinterpret_cast<std::byte*>(transfer.frame);
}

}  // namespace

Result<tiers::SlotGrant> ScriptedSpill::allocate(std::uint64_t page_bytes) {
  if (later_allocations > 0) {
    --later_allocations;
    return tiers::SlotGrant{tiers::Grant::later, 0};
  }
  if (out_of_service) return fail(VMEM_ERROR_DRIVER, "the scripted disk is dead", EIO);
  const bool used_up = used_bytes_ + page_bytes > budget_bytes_;
  if (away || (away_beyond && used_up)) return fail(VMEM_ERROR_TIMEOUT, "the scripted node is away");
  if (used_up) return tiers::SlotGrant{tiers::Grant::full, 0};
  used_bytes_ += page_bytes;
  slots_[next_slot_].page_bytes = page_bytes;
  return tiers::SlotGrant{tiers::Grant::granted, next_slot_++};
}

void ScriptedSpill::release(tiers::SlotId slot) {
  const auto found = slots_.find(slot);
  ASSERT_NE(found, slots_.end()) << "released twice";
  for (const Pending& each : pending_) EXPECT_NE(each.transfer.slot, slot) << "released under a transfer";
  used_bytes_ -= found->second.page_bytes;
  slots_.erase(found);
}

Status ScriptedSpill::submit(std::span<tiers::Transfer> transfers) {
  for (tiers::Transfer& transfer : transfers) {
    if (on_submit) on_submit(transfer);
    transfer.id = tiers::next_transfer_id();
    ++counts_[transfer.direction];
    into_frames += transfer.host == nullptr ? 1 : 0;
    Pending& pending = pending_.emplace_back(Pending{transfer, {}});
    if (transfer.direction == Direction::store) pending.bytes.assign(transfer.host, transfer.host + transfer.bytes);
  }
  return {};
}

Status ScriptedSpill::poll(std::vector<tiers::Completion>& completions) {
  if (++polls_ % polls_each != 0) return {};
  for (auto it = pending_.begin(); it != pending_.end(); ++it) {
    if (held_.contains(it->transfer.direction) || held_queue == queue(it->transfer.slot)) continue;
    Pending pending = std::move(*it);
    pending_.erase(it);
    completions.push_back(carry_out(pending));
    return {};
  }
  return {};
}

class ScriptedFiles::Source final : public tiers::PageSource {
 public:
  Source(ScriptedFiles& files, std::uint64_t bytes) : files_(files), bytes_(bytes) { ++files_.sources; }
  ~Source() override { --files_.sources; }
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;
  std::string name() const override { return "scripted.bin"; }
  std::uint64_t head_bytes() const override { return 0; }
  std::uint64_t bytes() const override { return bytes_; }
  Result<tiers::SlotId> lay_out(std::uint64_t, std::uint32_t count) override {
    return std::exchange(files_.next_slot_, files_.next_slot_ + count);
  }

 private:
  ScriptedFiles& files_;
  const std::uint64_t bytes_;
};

std::shared_ptr<tiers::PageSource> ScriptedFiles::map(std::uint64_t bytes) {
  return std::make_shared<Source>(*this, bytes);
}

void ScriptedFiles::release(tiers::SlotId slot) { ADD_FAILURE() << "slot " << slot << " belongs to its source"; }

Status ScriptedFiles::submit(std::span<tiers::Transfer> transfers) {
  for (tiers::Transfer& transfer : transfers) {
    if (on_submit) on_submit(transfer);
    EXPECT_EQ(transfer.direction, Direction::load);
    transfer.id = tiers::next_transfer_id();
    pending_.push_back(transfer);
    ++loads;
    into_frames += transfer.host == nullptr ? 1 : 0;
  }
  return {};
}

Status ScriptedFiles::poll(std::vector<tiers::Completion>& completions) {
  if (held_ || pending_.empty() || ++polls_ % polls_each != 0) return {};
  const tiers::Transfer transfer = pending_.front();
  pending_.pop_front();
  tiers::Completion& completion = completions.emplace_back();
  completion.id = transfer.id;
  if (answers_.empty()) {
    std::memset(destination(transfer), value_of(transfer.slot), transfer.bytes);
    return {};
  }
  completion.outcome = answers_.front().first;
  completion.error = {VMEM_ERROR_LOST, 0, answers_.front().second};
  answers_.pop_front();
  return {};
}

tiers::Completion ScriptedSpill::carry_out(Pending& pending) {
  const tiers::Transfer& transfer = pending.transfer;
  tiers::Completion completion;
  completion.id = transfer.id;
  auto& answers = answers_[transfer.direction];
  if (!answers.empty()) {
    completion.outcome = answers.front().outcome;
    completion.error = {answers.front().status, 0, "as scripted"};
    answers.pop_front();
    return completion;
  }
  if (stores_fail && transfer.direction == Direction::store) {
    completion.outcome = Outcome::failed;
    completion.error = {VMEM_ERROR_DRIVER, EIO, "the scripted disk is dead"};
    return completion;
  }
  if (full && transfer.direction == Direction::store) {
    completion.outcome = Outcome::failed;
    completion.error = {VMEM_ERROR_OUT_OF_MEMORY, 0, "as scripted"};
    return completion;
  }
  Stored& stored = slots_.at(transfer.slot);
  if (transfer.direction == Direction::store) {
    EXPECT_TRUE(std::equal(pending.bytes.begin(), pending.bytes.end(), transfer.host))
        << "written to while it was stored";
    completion.changed = transfer.if_changed && stored.bytes != pending.bytes;
    stored = {stored.page_bytes, transfer.version, transfer.page.granule, std::move(pending.bytes)};
    return completion;
  }
  EXPECT_EQ(stored.version, transfer.version) << "another version was stored";
  EXPECT_EQ(stored.granule, transfer.page.granule) << "another page was stored";
  std::ranges::copy(stored.bytes, destination(transfer));
  if (transfer.host == nullptr && wrong_bytes > 0) {
    --wrong_bytes;
    destination(transfer)[transfer.bytes / 2] ^= std::byte{1};
  }
  return completion;
}

ScriptedTier::ScriptedTier(const gpu::Driver& driver, std::vector<CUcontext> contexts,
                           std::unique_ptr<tiers::NearTier> inner)
    : driver_(driver), contexts_(std::move(contexts)), inner_(std::move(inner)) {
  for (const Direction direction : {Direction::load, Direction::store}) {
    EXPECT_EQ(driver_->cuStreamCreate(&holds_[direction].stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
  }
}

ScriptedTier::~ScriptedTier() {
  for (auto& [direction, hold] : holds_) {
    hold.gate.reset();
    (void)driver_->cuStreamSynchronize(hold.stream);
  }
  inner_.reset();
  for (auto& [direction, hold] : holds_) (void)driver_->cuStreamDestroy(hold.stream);
  for (CUevent event : events_) (void)driver_->cuEventDestroy(event);
}

void ScriptedTier::hold_back(Direction direction) {
  Hold& hold = holds_[direction];
  hold.gate = std::make_unique<Gate>(driver_, hold.stream);
}

void ScriptedTier::let_go(Direction direction) { holds_[direction].gate.reset(); }

Result<tiers::SlotGrant> ScriptedTier::allocate(std::uint64_t page_bytes) {
  if (on_allocate) std::exchange(on_allocate, nullptr)();
  if (later_allocations > 0) {
    --later_allocations;
    return tiers::SlotGrant{tiers::Grant::later, 0};
  }
  auto granted = inner_->allocate(page_bytes);
  while (grows_at_once && granted && granted->grant == tiers::Grant::later) {
    let_grow();
    granted = inner_->allocate(page_bytes);
  }
  return granted;
}

void ScriptedTier::expect(std::uint64_t page_bytes, std::uint64_t count) {
  inner_->expect(page_bytes, count);
  let_grow();
}

void ScriptedTier::set_budget(std::uint64_t bytes) {
  inner_->set_budget(bytes);
  let_grow();
}

void ScriptedTier::let_grow() const {
  while (grows_at_once && inner_->grow_one()) {
  }
}

void ScriptedTier::delay(Hold& hold, tiers::Transfer& transfer) {
  for (CUevent& after : transfer.after) {
    if (after != nullptr) {
      EXPECT_EQ(driver_->cuStreamWaitEvent(hold.stream, after, 0), CUDA_SUCCESS);
    }
    after = nullptr;
  }
  EXPECT_EQ(driver_->cuEventCreate(&events_.emplace_back(), CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
  EXPECT_EQ(driver_->cuEventRecord(events_.back(), hold.stream), CUDA_SUCCESS);
  transfer.after[0] = events_.back();
}

Status ScriptedTier::submit(std::span<tiers::Transfer> transfers) {
  for (tiers::Transfer& transfer : transfers) {
    if (on_submit) on_submit(transfer);
    Hold& hold = holds_[transfer.direction];
    if (hold.gate) delay(hold, transfer);
    VMEM_TRY(inner_->submit({&transfer, 1}));
    ++(transfer.if_changed || transfer.compare_with ? checks_ : counts_[transfer.direction]);
    auto& answers = answers_[transfer.direction];
    if (answers.empty()) continue;
    outcomes_[transfer.id] = answers.front();
    answers.pop_front();
  }
  return {};
}

Status ScriptedTier::poll(std::vector<tiers::Completion>& completions) {
  const std::size_t before = completions.size();
  const Status polled = inner_->poll(completions);
  for (std::size_t i = before; i < completions.size(); ++i) {
    const auto scripted = outcomes_.find(completions[i].id);
    if (scripted == outcomes_.end()) continue;
    completions[i].outcome = scripted->second;
    completions[i].error = {VMEM_ERROR_LOST, 0, "scripted"};
    outcomes_.erase(scripted);
  }
  return polled;
}

void ScriptedPolicy::region_ends(RegionId region) {
  live.erase(region);
  std::erase_if(resident, [&](PageId page) { return page.region == region; });
  std::erase_if(arrivals_, [&](PageId page) { return page.region == region; });
}

void ScriptedPolicy::page_arrived(PageId page, Cause) {
  EXPECT_TRUE(live.contains(page.region));
  EXPECT_TRUE(resident.insert(page).second) << "arrived twice: page " << page.index;
  arrivals_.push_back(page);
}

void ScriptedPolicy::page_left(PageId page) {
  EXPECT_EQ(resident.erase(page), 1u) << "left without having arrived: page " << page.index;
  std::erase(arrivals_, page);
}

void ScriptedPolicy::used(const Use& use) {
  EXPECT_TRUE(live.contains(use.region));
  uses.push_back(use);
  if (on_used) on_used(use);
}

std::size_t ScriptedPolicy::victims(const VictimQuery& query, std::span<PageId> out) {
  ++victim_queries;
  const std::vector<PageId>& from = offer.empty() ? arrivals_ : offer;
  if (!query.again) offered_ = 0;
  const std::size_t count = std::min(out.size(), from.size() - std::min(offered_, from.size()));
  std::copy_n(from.begin() + std::ptrdiff_t(offered_), count, out.begin());
  offered_ += count;
  return count;
}

std::size_t ScriptedPolicy::leaves(const PrefetchQuery&, std::span<PageId> out) {
  std::size_t count = 0;
  for (std::size_t left = leaving.size(); left > 0 && count < out.size(); --left) {
    const PageId page = leaving.front();
    leaving.pop_front();
    if (!resident.contains(page)) continue;
    leaving.push_back(page);
    out[count++] = page;
  }
  return count;
}

std::size_t ScriptedPolicy::prefetches(const PrefetchQuery&, std::span<PageId> out) {
  std::size_t count = 0;
  for (; count < out.size() && !ahead.empty(); ++count, ahead.pop_front()) out[count] = ahead.front();
  return count;
}

}  // namespace vmem::migration
