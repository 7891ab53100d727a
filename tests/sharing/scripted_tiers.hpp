// Tiers whose transfers end when the test polls them, after the time that it scripts: nodes with
// pages of published regions, and disks.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "tiers/page_source.hpp"
#include "tiers/tier.hpp"

namespace vmem::sharing {

inline constexpr std::uint64_t kSmallPage = 4096;

// Transfers begin in order, one after the other.
class ScriptedTier : public tiers::Tier {
 public:
  ScriptedTier(const char* name, ManualClock& clock) : clock_(clock), info_{.name = name} {}
  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t) override { return tiers::SlotGrant{}; }
  void release(tiers::SlotId) override {}
  Status submit(std::span<tiers::Transfer> transfers) override {
    if (refuses) return fail(VMEM_ERROR_OUT_OF_MEMORY, "refused, as scripted");
    for (tiers::Transfer& transfer : transfers) {
      transfer.id = tiers::next_transfer_id();
      submitted_.push_back(transfer);
    }
    return {};
  }
  Status poll(std::vector<tiers::Completion>& completions) override {
    if (holds) return {};
    for (const tiers::Transfer& transfer : std::exchange(submitted_, {})) {
      clock_.advance(page_us);
      tiers::Completion ended = run(transfer);
      ended.id = transfer.id;
      if (ended.outcome != tiers::Outcome::done) ended.error = {VMEM_ERROR_DRIVER, 0, std::string(info_.name)};
      completions.push_back(std::move(ended));
    }
    return {};
  }
  tiers::Finished finish() noexcept override {
    submitted_.clear();
    return tiers::Finished::all_ended;
  }
  const std::deque<tiers::Transfer>& in_flight() const { return submitted_; }

  std::uint64_t page_us = 100;
  bool holds = false, refuses = false;  // no transfer ends, or begins

 protected:
  virtual tiers::Completion run(const tiers::Transfer& transfer) = 0;

 private:
  ManualClock& clock_;
  const tiers::TierInfo info_;
  std::deque<tiers::Transfer> submitted_;
};

inline void fill_page(std::byte* page, std::uint64_t serial, std::uint32_t granule) {
  for (std::size_t at = 0; at < kSmallPage; at += 8) {
    const std::uint64_t word = serial << 40 | std::uint64_t{granule} << 16 | at;
    std::memcpy(page + at, &word, sizeof(word));
  }
}

class ScriptedNodes final : public ScriptedTier, public tiers::QueueingTier {
 public:
  explicit ScriptedNodes(ManualClock& clock) : ScriptedTier("nodes", clock) {}
  std::uint32_t queue(tiers::SlotId) const override { return 7; }
  void hurry(std::uint64_t transfer) override { hurried.push_back(transfer); }

  std::optional<tiers::Outcome> fails;  // of all loads
  tiers::CameFrom came_from = tiers::CameFrom::anywhere;
  std::uint64_t pages = 0;
  std::vector<std::uint64_t> hurried;

 private:
  tiers::Completion run(const tiers::Transfer& transfer) override {
    if (fails) return {.id = 0, .outcome = *fails, .error = {}};
    fill_page(transfer.host, static_cast<std::uint64_t>(transfer.page.serial), transfer.page.granule);
    ++pages;
    tiers::Completion done;
    done.came_from = came_from;
    return done;
  }
};

// Slots of any size within a budget. Like the real one it gives the page that was stored, or none.
class ScriptedDisks final : public ScriptedTier, public tiers::DegradableTier {
 public:
  ScriptedDisks(ManualClock& clock, std::uint64_t budget) : ScriptedTier("disks", clock), budget_bytes(budget) {}
  tiers::TierUsage usage() const override { return {.budget_bytes = budget_bytes, .used_bytes = used_bytes()}; }
  Result<tiers::SlotGrant> allocate(std::uint64_t bytes) override {
    if (later) return tiers::SlotGrant{tiers::Grant::later, 0};
    const auto other_size = [&](const auto& each) { return each.second.bytes != bytes; };
    if (one_size && std::ranges::any_of(slots, other_size)) return tiers::SlotGrant{};
    if (used_bytes() + bytes > budget_bytes) return tiers::SlotGrant{};
    tiers::SlotId slot = 0;
    while (slots.contains(slot)) ++slot;
    slots[slot].bytes = bytes;
    return tiers::SlotGrant{tiers::Grant::granted, slot};
  }
  void release(tiers::SlotId slot) override {
    for (const auto& each : in_flight()) EXPECT_NE(each.slot, slot) << "released during a transfer";
    EXPECT_EQ(slots.erase(slot), 1u);
  }
  bool degraded(tiers::SlotId) const override { return unreadable; }
  std::uint64_t used_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& [slot, held] : slots) sum += held.bytes;
    return sum;
  }

  std::uint64_t budget_bytes;
  bool later = false, unreadable = false, fails_stores = false;
  bool one_size = false;  // pages of a size have room only if no others have slots
  std::optional<tiers::Outcome> fails_loads;
  std::uint64_t loads = 0, stores = 0;
  struct Slot {
    std::uint64_t bytes = 0;
    std::optional<std::pair<pagetable::PageKey, std::uint64_t>> page;  // and its version
    std::vector<std::byte> content;
  };
  std::map<tiers::SlotId, Slot> slots;

 private:
  tiers::Completion run(const tiers::Transfer& transfer) override {
    Slot& slot = slots.at(transfer.slot);
    const auto page = std::pair(transfer.page, transfer.version);
    if (transfer.direction == tiers::Direction::store) {
      if (fails_stores) return {.id = 0, .outcome = tiers::Outcome::failed, .error = {}};
      ++stores;
      slot.page = page;
      slot.content.assign(transfer.host, transfer.host + transfer.bytes);
      return {};
    }
    if (fails_loads) return {.id = 0, .outcome = *fails_loads, .error = {}};
    if (slot.page != page) return {.id = 0, .outcome = tiers::Outcome::lost, .error = {}};
    ++loads;
    std::memcpy(transfer.host, slot.content.data(), transfer.bytes);
    return {};
  }
};

// Slots of the nodes' tier from `first` on.
class ScriptedSource final : public tiers::PageSource {
 public:
  explicit ScriptedSource(tiers::SlotId first) : first_(first) {}
  std::string name() const override { return "scripted"; }
  std::uint64_t head_bytes() const override { return 0; }
  std::uint64_t bytes() const override { return 0; }
  Result<tiers::SlotId> lay_out(std::uint64_t, std::uint32_t) override { return first_; }

 private:
  const tiers::SlotId first_;
};

}  // namespace vmem::sharing
