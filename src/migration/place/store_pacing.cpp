#include "migration/place/store_pacing.hpp"

#include <algorithm>
#include <cerrno>

namespace vmem::migration {
namespace {

constexpr std::uint64_t kFullForUs = 100'000;       // pause before a full tier is asked again
constexpr std::uint64_t kFirstPauseUs = 1'000;      // after a failed store; doubles to kFullForUs
constexpr std::uint64_t kFailingForUs = 5'000'000;  // without a success; then no more pages

}  // namespace

bool StorePacing::may_recover(std::uint64_t now_us) const {
  return failed_in_a_row_ != 0 && now_us - failing_since_us_ < kFailingForUs;
}

void StorePacing::stored() {
  failed_in_a_row_ = 0;
  error_.clear();
}

// After the pause, the next store may use another slot, on another disk.
void StorePacing::failed(std::uint64_t now_us, const Error& error) {
  if (now_us > paused_until_us_ + kFailingForUs) failed_in_a_row_ = 0;  // a past episode
  if (failed_in_a_row_++ == 0) failing_since_us_ = now_us;
  const std::uint64_t pause_us = kFirstPauseUs << std::min(failed_in_a_row_ - 1, 7u);
  // ENOMEM: the process, not the tier, lacks memory.
  const bool full = error.status == VMEM_ERROR_OUT_OF_MEMORY && error.native != ENOMEM;
  paused_until_us_ = now_us + (full ? kFullForUs : std::min(pause_us, kFullForUs));
  if (full) failed_in_a_row_ = 0;
  error_ = error.message;
}

void StorePacing::refused(std::uint64_t now_us, const Error& error) {
  paused_until_us_ = now_us + kFullForUs;
  error_ = error.message;
}

void StorePacing::timed_out(std::uint64_t now_us, const Error& error) {
  paused_until_us_ = now_us + kFirstPauseUs;
  away_until_us_ = now_us + kFullForUs;
  error_ = error.message;
}

void StorePacing::room_came() {
  if (failed_in_a_row_ == 0) paused_until_us_ = 0;
}

}  // namespace vmem::migration
