// The transfers that a tier has accepted and not completed, and the completions that `poll` has not
// collected. Implements Tier::poll and Tier::finish for tiers that run transfers on threads.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "tiers/tier.hpp"

namespace vmem::tiers {

class TransferLedger {
 public:
  // `on_ready` may be empty. The tier's threads call it, without a lock, when poll has completions
  // or allocate may have a slot. `finish` waits for calls to end, without limit. No call begins
  // once the tier is quarantined: what it uses may be gone then.
  explicit TransferLedger(std::function<void()> on_ready) : on_ready_(std::move(on_ready)) {}

  // ---- the mover's calls ----

  // Accepts a transfer. Returns its id, after `hand_over(id)` has given the transfer to the tier's
  // threads. If that throws, no transfer was accepted.
  template <typename HandOver>
  std::uint64_t begin(Direction direction, HandOver&& hand_over) {
    Begun begun(*this, direction);
    std::forward<HandOver>(hand_over)(begun.id);
    begun.handed_over = true;
    return begun.id;
  }
  void poll(std::vector<Completion>& completions);
  // Waits until all transfers and chores have ended. Without any progress for `answer_wait`, the
  // tier is quarantined, and `warning` is logged.
  Finished finish(std::chrono::microseconds answer_wait, const char* warning) noexcept;
  // Waits until all transfers and chores have ended, for tiers that end each of them in time.
  void finish() noexcept;

  // ---- any thread ----

  // REQUIRES: `direction` is that of the transfer.
  void complete(Completion completion, Direction direction);
  struct InFlight {
    std::uint64_t loads = 0, stores = 0;
  };
  InFlight in_flight() const;
  bool idle() const;         // no transfer is in flight; chores may be
  bool quarantined() const;  // as `finish` found
  void tell_ready();         // calls on_ready: poll has completions, or allocate may have a slot

  // Work that is no transfer, e.g. growing a file. `finish` waits until the object is destroyed.
  class [[nodiscard]] Chore {
   public:
    explicit Chore(TransferLedger& ledger) : ledger_(&ledger) { ledger_->chore_begins(); }
    ~Chore() {
      if (ledger_ != nullptr) ledger_->chore_ends();
    }
    Chore(Chore&& other) noexcept : ledger_(std::exchange(other.ledger_, nullptr)) {}
    Chore& operator=(Chore&&) = delete;

   private:
    TransferLedger* ledger_;
  };

 private:
  // Counts a transfer from construction on, and after destruction only if it was handed over.
  struct Begun {
    Begun(TransferLedger& in, Direction of);
    ~Begun();
    Begun(const Begun&) = delete;
    Begun& operator=(const Begun&) = delete;
    TransferLedger& ledger;
    const Direction direction;
    const std::uint64_t id;
    bool handed_over = false;
  };
  std::uint64_t& count(Direction direction) {
    return direction == Direction::load ? in_flight_.loads : in_flight_.stores;
  }
  // REQUIRES: mutex_ is locked.
  bool all_ended() const { return in_flight_.loads + in_flight_.stores + chores_ + telling_ == 0; }
  void chore_begins();
  void chore_ends();
  void tell(std::unique_lock<std::mutex>& lock);

  const std::function<void()> on_ready_;
  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable ended_;
  std::vector<Completion> completions_;
  InFlight in_flight_;
  std::uint32_t chores_ = 0;
  std::uint32_t telling_ = 0;  // calls of on_ready in progress
  // When a transfer or chore last began, or a chore or a call of on_ready last ended.
  std::chrono::steady_clock::time_point last_progress_{};
  bool quarantined_ = false;
};

}  // namespace vmem::tiers
