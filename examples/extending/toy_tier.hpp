// The smallest complete tier below host memory: a page's copy is a block of this process's memory.
// It shows what every such tier needs: slots within a budget, transfers on a thread of its own, a
// checksum for each copy.
//
// The mover's thread grants slots and submits transfers. From submit to the completion, the slot's
// contents belong to the worker.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"
#include "tiers/seal.hpp"
#include "tiers/tier.hpp"

namespace vmem::examples {

class ToyTier final : public tiers::Tier {
 public:
  // `wake` is called by the worker when poll has completions.
  ToyTier(std::uint64_t budget_bytes, std::function<void()> wake)
      : budget_bytes_(budget_bytes), ledger_(std::move(wake)) {}
  // Runs the transfers in flight to their end. `wake` must still be valid.
  ~ToyTier() override = default;

  const tiers::TierInfo& info() const noexcept override { return info_; }
  tiers::TierUsage usage() const override;
  void expect(std::uint64_t, std::uint64_t) override {}  // allocate needs no preparation
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(tiers::SlotId slot) override;
  Status submit(std::span<tiers::Transfer> transfers) override;
  Status poll(std::vector<tiers::Completion>& completions) override;
  tiers::Finished finish() noexcept override;

 private:
  struct Slot {
    std::unique_ptr<std::byte[]> bytes;  // null: the slot is free
    std::uint64_t page_bytes = 0;
    std::optional<tiers::Checksum> seal;  // of the copy; null: none was stored
  };
  void post(const tiers::Transfer& transfer);
  static void store(Slot& slot, const tiers::Transfer& transfer);
  static tiers::Completion load(const Slot& slot, const tiers::Transfer& transfer);

  static constexpr tiers::TierInfo info_{.name = "toy"};
  const std::uint64_t budget_bytes_;
  std::atomic<std::uint64_t> used_bytes_{0};  // any thread asks for the usage
  // A slot's id is its index. A deque: the worker's references stay valid while the list grows.
  std::deque<Slot> slots_;
  std::vector<tiers::SlotId> free_;  // granted again, last one first: ids stay small

  tiers::TransferLedger ledger_;
  // One thread, so that transfers run in the order of submission. Last: it is joined before the
  // members that it uses are destroyed.
  tiers::Workers workers_{"toy-tier", 1, [](tiers::Inbox::Task then) { then(); }};
};

}  // namespace vmem::examples
