#include "migration/policy/reuse_clock.hpp"

namespace vmem::migration {
namespace {

constexpr std::uint64_t kUnknownBudgetBytes = std::uint64_t{64} << 30;
constexpr std::uint64_t kTicksPerBudget = 4096;

unsigned shift_for(std::uint64_t budget_bytes) {
  const std::uint64_t tick_bytes = std::max<std::uint64_t>(budget_bytes / kTicksPerBudget, 1);
  return unsigned(std::bit_width(tick_bytes)) - 1;
}

}  // namespace

ReuseClock::ReuseClock(std::uint64_t budget_bytes)
    : budget_bytes_(budget_bytes ? budget_bytes : kUnknownBudgetBytes),
      shift_(shift_for(budget_bytes_)),
      budget_(Ticks(budget_bytes_ >> shift_)),
      bytes_(0) {}

void ReuseClock::note_repeat(Ticks distance) {
  const Ticks stretch = 2 * budget_;
  if (age(stretch_begin_) >= stretch) {
    previous_largest_ = age(stretch_begin_) < 2 * stretch ? largest_ : 0;
    largest_ = 0;
    stretch_begin_ = now();
  }
  largest_ = std::max(largest_, std::min(distance, burst_limit()));
}

Ticks ReuseClock::window() const {
  const Ticks since = age(stretch_begin_);
  const Ticks stretch = 2 * budget_;
  if (since >= 2 * stretch) return 0;
  const Ticks largest = since >= stretch ? largest_ : std::max(largest_, previous_largest_);
  return largest ? largest + largest / 4 + 1 : 0;  // plus a margin for a later repeat
}

}  // namespace vmem::migration
