#include "migration/policy/in_place_trials.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

namespace vmem::migration {
namespace {

// After a trial in vain, so many times as much is compared before the next one.
constexpr std::uint64_t kPatience = 16;
constexpr std::uint32_t kFailuresMax = 6;
// A block is kept in place if a window is at least this much shorter, in percent; and no longer once
// windows are this much longer than they were before.
constexpr std::uint64_t kGainPercent = 3, kLossPercent = 10;
constexpr std::uint64_t kLateFactor = 2;

}  // namespace

bool InPlaceTrials::Known::complete() const {
  std::uint64_t enough = bytes;
  for (std::uint32_t i = 0; i < failures; ++i) enough *= kPatience;
  return compared >= enough;
}

void InPlaceTrials::compared(const Compared& page) {
  Known& known = known_[page.block];
  if (known.settled) return;
  if (known.complete() && !known.sparse()) known.compared = known.in_part = 0;  // begins anew
  known.end = page.end;
  known.bytes = page.block_bytes;
  known.compared += page.page_bytes;
  const bool in_part = page.changed_bytes != 0 && page.changed_bytes < page.page_bytes / 4 * 3;
  known.in_part += in_part ? page.page_bytes : 0;
  if (!busy() && known.qualifies()) watch(page.block, State::before);
}

bool InPlaceTrials::count_use() {
  if (!std::exchange(begun_, true)) {
    ++asked_;
    return true;
  }
  ++uses_;
  if (window_uses_ == 0) {
    if (uses_ == kUnit * kUnitsMax) {
      known_[clock_].compared = known_[clock_].in_part = 0;
      watch_next();
      return false;
    }
    if (uses_ % kUnit != 0 || fetched_bytes_ < kRounds * known_[clock_].bytes) return false;
    window_uses_ = uses_;
  }
  if (uses_ < window_uses_) return false;
  uses_ = 0;
  ++asked_;
  return true;
}

void InPlaceTrials::watch(Block block, State state) {
  state_ = state;
  clock_ = block;
  fetched_bytes_ = 0;
  begun_ = false;
  uses_ = window_uses_ = skipped_ = windows_ = 0;
  stale_ = asked_;
  last_us_ = total_us_ = 0;
  shortest_us_ = std::numeric_limits<std::uint64_t>::max();
}

void InPlaceTrials::stop() {
  watch(kNone, State::idle);
  group_.clear();
}

void InPlaceTrials::watch_next() {
  stop();
  if (!to_try_.empty()) {
    group_ = std::move(to_try_.back());
    to_try_.pop_back();
    return watch(group_.front(), State::before);
  }
  for (const auto& [block, known] : known_) {
    if (known.qualifies()) return watch(block, State::before);
  }
  std::ranges::rotate(kept_, kept_.empty() ? kept_.end() : kept_.begin() + 1);
  if (kept_.empty() || kept_.front().clock == kNone) return;
  watch(kept_.front().clock, State::checking);
  window_uses_ = kept_.front().window_uses;
}

InPlaceTrials::Changes InPlaceTrials::measured(std::uint64_t now_us) {
  --asked_;
  if (stale_ != 0) {
    --stale_;
    return {};
  }
  const std::uint64_t began_us = std::exchange(last_us_, now_us);
  if (began_us == 0) return {};
  if (skipped_ != 0) {
    --skipped_;
    return {};
  }
  return window_ended(now_us - began_us, now_us);
}

InPlaceTrials::Changes InPlaceTrials::window_ended(std::uint64_t took_us, std::uint64_t now_us) {
  if (state_ == State::checking) return checked(took_us);
  if (state_ == State::before && windows_ == 0 && took_us < kShortestUs) {
    window_uses_ *= std::uint32_t(kShortestUs / (took_us + 1) + 1);
    skipped_ = asked_;
    return {};
  }
  shortest_us_ = std::min(shortest_us_, took_us);
  if (++windows_ < kWindows) return {};
  if (state_ == State::before) return begin_trial(now_us);
  return end_trial(shortest_us_ <= before_us_ / 100 * (100 - kGainPercent));
}

InPlaceTrials::Changes InPlaceTrials::begin_trial(std::uint64_t now_us) {
  if (group_.empty()) {
    for (const auto& [block, known] : known_) {
      if (block == clock_ || known.qualifies()) group_.push_back(block);
    }
    std::ranges::sort(group_, std::greater{}, [&](Block each) { return std::pair(known_[each].bytes, each); });
  }
  for (const Block block : group_) known_[block].settled = true;
  state_ = State::in_place;
  before_us_ = std::exchange(shortest_us_, std::numeric_limits<std::uint64_t>::max());
  windows_ = 0;
  skipped_ = asked_ + 1;
  late_us_ = now_us + kLateFactor * before_us_ * (skipped_ + kWindows);
  return {.to_host = group_, .to_hbm = {}};
}

InPlaceTrials::Changes InPlaceTrials::end_trial(bool faster) {
  Changes changes;
  if (faster) {
    kept_.push_back({group_, clock_, window_uses_, before_us_});
  } else {
    changes.to_hbm = group_;
    for (const Block block : group_) known_[block].settled = false;
    if (group_.size() == 1) {
      Known& known = known_[group_.front()];
      known.failures = std::min(known.failures + 1, kFailuresMax);
      known.compared = known.in_part = 0;
    } else {
      const auto middle = group_.begin() + std::ptrdiff_t((group_.size() + 1) / 2);
      to_try_.emplace_back(middle, group_.end());
      to_try_.emplace_back(group_.begin(), middle);
    }
  }
  watch_next();
  return changes;
}

InPlaceTrials::Changes InPlaceTrials::checked(std::uint64_t took_us) {
  total_us_ += took_us;
  if (++windows_ < kWindowsChecked) return {};
  const Kept& kept = kept_.front();
  Changes changes;
  if (total_us_ / 100 > kWindowsChecked * kept.before_us / 100 * (100 + kLossPercent) / 100) {
    changes.to_hbm = kept.blocks;
    for (const Block block : kept.blocks) forget(block);
    kept_.erase(kept_.begin());
  }
  watch_next();
  return changes;
}

InPlaceTrials::Changes InPlaceTrials::look(std::uint64_t now_us) {
  return state_ == State::in_place && now_us > late_us_ ? end_trial(false) : Changes{};
}

// What was learned of it: it begins anew, as after a trial in vain.
void InPlaceTrials::forget(Block block) {
  Known& known = known_[block];
  known = {.end = known.end, .bytes = known.bytes, .failures = 1};
}

InPlaceTrials::Changes InPlaceTrials::ended(std::uint32_t first, std::uint32_t end) {
  Changes changes;
  auto at = known_.lower_bound(first);
  if (at != known_.begin() && std::prev(at)->second.end > first) --at;
  while (at != known_.end() && at->first < end) {
    const Block block = at->first;
    at = known_.erase(at);
    remove(block);
    if (block != clock_) continue;
    if (state_ == State::in_place) changes.to_hbm = group_;
    for (const Block other : changes.to_hbm) known_[other].settled = false;
    watch_next();
  }
  return changes;
}

void InPlaceTrials::remove(Block block) {
  for (Kept& each : kept_) {
    std::erase(each.blocks, block);
    if (each.clock == block) each.clock = kNone;
  }
  std::erase_if(kept_, [](const Kept& each) { return each.blocks.empty(); });
  for (auto& each : to_try_) std::erase(each, block);
  std::erase_if(to_try_, [](const auto& each) { return each.empty(); });
  std::erase(group_, block);
}

}  // namespace vmem::migration
