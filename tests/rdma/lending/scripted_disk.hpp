// A tier in memory, of a disk or of HBM, that fails when the test says so; HBM that others read.
#pragma once

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "tiers/tier.hpp"

namespace vmem::rdma {

class ScriptedDisk : public tiers::Tier {
 public:
  explicit ScriptedDisk(std::uint64_t bytes) : left(bytes) {}
  std::uint64_t left;  // bytes in service
  bool takes_writes = true, full = false;
  std::uint64_t loads = 0;

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override { return {.budget_bytes = left}; }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override {
    if (full) return tiers::SlotGrant{tiers::Grant::full, 0};
    pages_[++last_slot_].resize(page_bytes);
    return tiers::SlotGrant{tiers::Grant::granted, last_slot_};
  }
  void release(tiers::SlotId slot) override { pages_.erase(slot); }
  Status submit(std::span<tiers::Transfer> transfers) override {
    for (tiers::Transfer& transfer : transfers) {
      transfer.id = tiers::next_transfer_id();
      ended_.push_back(carry_out(transfer));
    }
    return {};
  }
  Status poll(std::vector<tiers::Completion>& completions) override {
    for (tiers::Completion& each : ended_) completions.push_back(std::move(each));
    ended_.clear();
    return {};
  }
  tiers::Finished finish() noexcept override { return tiers::Finished::all_ended; }

 protected:
  std::map<tiers::SlotId, std::vector<std::byte>> pages_;

 private:
  tiers::Completion carry_out(const tiers::Transfer& transfer) {
    std::vector<std::byte>& page = pages_.at(transfer.slot);
    tiers::Completion completion;
    completion.id = transfer.id;
    if (transfer.direction == tiers::Direction::load) {
      ++loads;
      std::memcpy(transfer.host, page.data(), page.size());
    } else if (takes_writes) {
      std::memcpy(page.data(), transfer.host, page.size());
    } else {
      completion.outcome = tiers::Outcome::failed;
      completion.error = {VMEM_ERROR_DRIVER, EIO, "the disk does not write"};
    }
    return completion;
  }

  const tiers::TierInfo info_{.name = "scripted disk"};
  std::vector<tiers::Completion> ended_;
  tiers::SlotId last_slot_ = 0;
};

class ScriptedHbm final : public ScriptedDisk, public tiers::PinningTier {
 public:
  using ScriptedDisk::ScriptedDisk;
  bool pins = true;              // whether it does
  std::uint64_t pinned = 0;      // at present
  std::function<void()> on_pin;  // before a page is pinned

  void register_memory(Register registers) override { registers_ = std::move(registers); }
  std::optional<std::span<std::byte>> pin(tiers::SlotId slot) override {
    if (!pins) return std::nullopt;
    if (on_pin) on_pin();
    std::vector<std::byte>& page = pages_.at(slot);
    auto registered = registers_(page);
    EXPECT_TRUE(registered) << registered.error().message;
    if (!registered) return std::nullopt;
    registered_.emplace(slot, *std::move(registered));
    ++pinned;
    return page;
  }
  void unpin(tiers::SlotId slot) override {
    registered_.erase(registered_.find(slot));
    --pinned;
  }
  void release(tiers::SlotId slot) override {
    EXPECT_FALSE(registered_.contains(slot)) << "it is being sent";
    ScriptedDisk::release(slot);
  }
  tiers::Finished finish() noexcept override {
    EXPECT_EQ(pinned, 0u);
    registers_ = {};
    return ScriptedDisk::finish();
  }

 private:
  Register registers_;
  std::multimap<tiers::SlotId, std::shared_ptr<void>> registered_;
};

}  // namespace vmem::rdma
