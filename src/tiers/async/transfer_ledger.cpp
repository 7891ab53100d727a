#include "tiers/async/transfer_ledger.hpp"

#include <algorithm>
#include <iterator>

#include "base/log.hpp"

namespace vmem::tiers {

using Clock = std::chrono::steady_clock;

TransferLedger::Begun::Begun(TransferLedger& in, Direction of) : ledger(in), direction(of), id(next_transfer_id()) {
  const std::lock_guard lock(ledger.mutex_);
  ++ledger.count(direction);
  ledger.last_progress_ = Clock::now();
}

TransferLedger::Begun::~Begun() {
  if (handed_over) return;
  const std::lock_guard lock(ledger.mutex_);
  --ledger.count(direction);
  ledger.ended_.notify_all();
}

void TransferLedger::poll(std::vector<Completion>& completions) {
  const std::lock_guard lock(mutex_);
  completions.reserve(completions.size() + completions_.size());
  std::ranges::move(completions_, std::back_inserter(completions));
  completions_.clear();
}

void TransferLedger::complete(Completion completion, Direction direction) {
  std::unique_lock lock(mutex_);
  completions_.push_back(std::move(completion));
  --count(direction);
  tell(lock);
}

Finished TransferLedger::finish(std::chrono::microseconds answer_wait, const char* warning) noexcept {
  std::unique_lock lock(mutex_);
  while (!all_ended() && !quarantined_) {
    const auto until = last_progress_ + answer_wait;
    if (Clock::now() < until) {
      ended_.wait_until(lock, until);
      continue;
    }
    quarantined_ = true;
    log::write_plain(warning);
  }
  ended_.wait(lock, [&] { return telling_ == 0; });
  return quarantined_ ? Finished::quarantined : Finished::all_ended;
}

void TransferLedger::finish() noexcept {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return all_ended(); });
}

TransferLedger::InFlight TransferLedger::in_flight() const {
  const std::lock_guard lock(mutex_);
  return in_flight_;
}

bool TransferLedger::idle() const {
  const InFlight now = in_flight();
  return now.loads + now.stores == 0;
}

bool TransferLedger::quarantined() const {
  const std::lock_guard lock(mutex_);
  return quarantined_;
}

void TransferLedger::tell_ready() {
  std::unique_lock lock(mutex_);
  tell(lock);
}

// REQUIRES: `lock` holds mutex_, which is released during the call.
void TransferLedger::tell(std::unique_lock<std::mutex>& lock) {
  ++telling_;
  last_progress_ = Clock::now();
  if (on_ready_ && !quarantined_) {
    lock.unlock();
    on_ready_();
    lock.lock();
  }
  --telling_;
  last_progress_ = Clock::now();
  ended_.notify_all();
}

void TransferLedger::chore_begins() {
  const std::lock_guard lock(mutex_);
  ++chores_;
  last_progress_ = Clock::now();
}

void TransferLedger::chore_ends() {
  const std::lock_guard lock(mutex_);
  --chores_;
  last_progress_ = Clock::now();
  ended_.notify_all();
}

}  // namespace vmem::tiers
