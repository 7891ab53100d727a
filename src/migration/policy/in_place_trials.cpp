#include "migration/policy/in_place_trials.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <utility>

namespace vmem::migration {
namespace {

// After a trial in vain, so many times as much is compared before the next one.
constexpr std::uint64_t kPatience = 16;
constexpr std::uint32_t kFailuresMax = 6;
// A block is kept in place if windows are at least this much shorter, in percent, and until they
// are this much longer than they were before.
constexpr std::uint64_t kGainPercent = 3, kLossPercent = 10;
constexpr std::uint64_t kLateFactor = 2;
// A clock that is not used for this long is given up.
constexpr std::uint64_t kUnusedUs = 10'000'000;
// Windows between two checks. Each check doubles them, at most kDoublings times.
constexpr std::uint32_t kWindowsUnchecked = 8, kDoublings = 5;

}  // namespace

bool InPlaceTrials::Known::complete() const {
  std::uint64_t enough = bytes;
  for (std::uint32_t i = 0; i < failures; ++i) enough *= kPatience;
  return compared >= enough;
}

void InPlaceTrials::compared(const Compared& page) {
  if (page.block_bytes > most_bytes_) return;
  Known& known = known_[page.block];
  if (known.settled) return;
  if (known.complete() && !known.sparse()) known.compared = known.in_part = 0;  // begins anew
  known.end = page.end;
  known.device = page.device;
  known.bytes = page.block_bytes;
  known.compared += page.page_bytes;
  const bool in_part = page.changed_bytes != 0 && page.changed_bytes < page.page_bytes / 4 * 3;
  known.in_part += in_part ? page.page_bytes : 0;
  const bool free = state_ == State::idle || state_ == State::checking;
  if (free && known.qualifies()) watch(page.block, State::before);
}

bool InPlaceTrials::used(Block block, std::uint16_t stream, std::uint64_t now_us) {
  const auto found = known_.find(block);
  if (found == known_.end()) return false;
  found->second.stream = stream;
  ++found->second.uses;
  if (block != clock_) return false;
  if (state_ != State::in_place) late_us_ = now_us + kUnusedUs;
  if (idle_uses_ != 0) {
    --idle_uses_;
    return false;
  }
  return count_use();
}

bool InPlaceTrials::count_use() {
  if (!std::exchange(begun_, true)) {
    ++asked_;
    return true;
  }
  ++uses_;
  if (window_uses_ == 0) {
    if (uses_ == kUsesMax) {
      give_up_clock();
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
  fetched_bytes_ = late_us_ = last_us_ = 0;
  begun_ = false;
  uses_ = window_uses_ = skipped_ = idle_uses_ = 0;
  stale_ = asked_;
  windows_us_.clear();
}

void InPlaceTrials::watch_next() {
  watch(kNone, State::idle);
  group_.clear();
  if (!to_try_.empty()) {
    group_ = std::move(to_try_.back());
    to_try_.pop_back();
    return watch(group_.front(), State::before);
  }
  for (const auto& [block, known] : known_) {
    if (known.qualifies()) return watch(block, State::before);
  }
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    std::ranges::rotate(kept_, kept_.begin() + 1);
    Kept& kept = kept_.front();
    if (kept.clock == kNone) continue;
    watch(kept.clock, State::checking);
    window_uses_ = kept.window_uses;
    idle_uses_ = (kWindowsUnchecked << std::min(kept.checks, kDoublings)) * window_uses_;
    return;
  }
}

void InPlaceTrials::give_up_clock() {
  if (state_ == State::before) begin_anew(clock_, known_[clock_].failures);
  watch_next();
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
  if (state_ == State::before && took_us < kShortestUs && window_uses_ < kUsesMax) {
    window_uses_ *= 2;
    skipped_ = asked_;
    windows_us_.clear();
    return {};
  }
  windows_us_.push_back(took_us);
  if (windows_us_.size() < kWindows) return {};
  if (state_ == State::before) return begin_trial(now_us);
  const std::uint64_t all_us = std::accumulate(windows_us_.begin(), windows_us_.end(), std::uint64_t{0});
  return end_trial(all_us <= windows_us_.size() * before_us_ / 100 * (100 - kGainPercent));
}

// Blocks of other devices and streams may belong to a part of the program that runs by itself: the
// clock would say nothing of them.
void InPlaceTrials::choose_group() {
  const Known& clock = known_[clock_];
  std::uint64_t room = most_bytes_ - std::min(most_bytes_, kept_bytes());
  for (const auto& [block, known] : known_) {
    const bool suits = known.qualifies() && known.device == clock.device && known.stream == clock.stream;
    if (suits && block != clock_) group_.push_back(block);
  }
  std::ranges::sort(group_, std::greater{}, [&](Block each) { return std::pair(known_[each].bytes, each); });
  group_.insert(group_.begin(), clock_);
  std::erase_if(group_, [&](Block each) {
    const std::uint64_t bytes = known_[each].bytes;
    if (bytes > room) return true;
    room -= bytes;
    return false;
  });
}

InPlaceTrials::Changes InPlaceTrials::begin_trial(std::uint64_t now_us) {
  if (group_.empty()) choose_group();
  // No trial if not even the clock fits into the room that is left.
  if (group_.empty() || group_.front() != clock_) {
    group_.clear();
    give_up_clock();
    return {};
  }
  for (const Block block : group_) {
    known_[block].settled = true;
    known_[block].uses = 0;
  }
  state_ = State::in_place;
  before_us_ = std::ranges::min(windows_us_);
  windows_us_.clear();
  skipped_ = asked_ + 1;
  late_us_ = now_us + kLateFactor * before_us_ * (skipped_ + kWindows);
  return {.to_host = group_, .to_hbm = {}};
}

InPlaceTrials::Changes InPlaceTrials::end_trial(bool faster) {
  if (faster) return keep();
  Changes changes{.to_host = {}, .to_hbm = group_};
  if (group_.size() > 1) {
    const auto middle = group_.begin() + std::ptrdiff_t((group_.size() + 1) / 2);
    to_try_.emplace_back(middle, group_.end());
    to_try_.emplace_back(group_.begin(), middle);
    for (const Block block : group_) known_[block].settled = false;
  } else {
    begin_anew(group_.front(), known_[group_.front()].failures + 1);
  }
  watch_next();
  return changes;
}

// Blocks that the trial did not use were not measured.
InPlaceTrials::Changes InPlaceTrials::keep() {
  Changes changes;
  const auto unused = std::ranges::partition(group_, [&](Block block) { return known_[block].uses >= kWindows; });
  changes.to_hbm.assign(unused.begin(), unused.end());
  kept_.push_back({{group_.begin(), unused.begin()}, clock_, window_uses_, before_us_});
  for (const Block block : unused) begin_anew(block, known_[block].failures);
  watch_next();
  return changes;
}

// One pause of the program must not decide.
InPlaceTrials::Changes InPlaceTrials::checked(std::uint64_t took_us) {
  windows_us_.push_back(took_us);
  if (windows_us_.size() < kWindowsChecked) return {};
  std::ranges::nth_element(windows_us_, windows_us_.begin() + kWindowsChecked / 2);
  Changes changes;
  ++kept_.front().checks;
  if (windows_us_[kWindowsChecked / 2] > kept_.front().before_us / 100 * (100 + kLossPercent)) {
    changes.to_hbm = kept_.front().blocks;
    kept_.erase(kept_.begin());
    for (const Block block : changes.to_hbm) begin_anew(block, 1);
  }
  watch_next();
  return changes;
}

InPlaceTrials::Changes InPlaceTrials::look(std::uint64_t now_us) {
  if (state_ == State::idle) return {};
  if (late_us_ == 0) late_us_ = now_us + kUnusedUs;
  if (now_us <= late_us_) return {};
  if (state_ == State::in_place) return end_trial(false);
  give_up_clock();
  return {};
}

void InPlaceTrials::begin_anew(Block block, std::uint32_t failures) {
  Known& known = known_[block];
  known.failures = std::min(failures, kFailuresMax);
  known.compared = known.in_part = 0;
  known.settled = false;
}

// The known block that covers the granule, or the first one behind it.
InPlaceTrials::Block InPlaceTrials::at(std::uint32_t granule) const {
  auto found = known_.upper_bound(granule);
  if (found != known_.begin() && std::prev(found)->second.end > granule) --found;
  return found == known_.end() ? kNone : found->first;
}

InPlaceTrials::Changes InPlaceTrials::ended(std::uint32_t first, std::uint32_t end) {
  Changes changes;
  for (Block block = at(first); block < end; block = at(first)) {
    known_.erase(block);
    Changes each = stop_trial_of(block);
    std::ranges::move(each.to_hbm, std::back_inserter(changes.to_hbm));
  }
  return changes;
}

InPlaceTrials::Changes InPlaceTrials::dropped(std::uint32_t first, std::uint32_t end) {
  const Block block = at(first);
  if (block >= end) return {};
  begin_anew(block, kFailuresMax);
  Changes changes = stop_trial_of(block);
  changes.to_hbm.push_back(block);
  return changes;
}

// Removes the block from all groups. Without its clock a trial ends, and the others go back.
InPlaceTrials::Changes InPlaceTrials::stop_trial_of(Block block) {
  remove(block);
  if (block != clock_) return {};
  Changes changes;
  if (state_ == State::in_place) {
    changes.to_hbm = std::move(group_);
    for (const Block other : changes.to_hbm) known_[other].settled = false;
  }
  watch_next();
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

std::uint64_t InPlaceTrials::kept_bytes() const {
  std::uint64_t bytes = 0;
  for (const Kept& kept : kept_) {
    for (const Block block : kept.blocks) bytes += known_.at(block).bytes;
  }
  return bytes;
}

}  // namespace vmem::migration
