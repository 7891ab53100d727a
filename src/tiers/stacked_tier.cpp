#include "tiers/stacked_tier.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::tiers {

StackedTier::StackedTier(std::vector<Tier*> preferred, const Clock* clock)
    : tiers_(std::move(preferred)), clock_(clock) {
  for (std::uint32_t i = 0; i < tiers_.size(); ++i)
    rates_.add(i, i == 0 ? PlaceRates::Untried::first : PlaceRates::Untried::last);
  rates_.update(0);
  for (const Tier* tier : tiers_) name_ += (name_.empty() ? "" : ", then ") + std::string(tier->info().name);
  info_.name = name_;
  for (Tier* tier : tiers_) {
    abilities_.emplace_back(tier);
    if (abilities_.back().growing != nullptr) growing_ = abilities_.back().growing;
  }
  for (const Tier* tier : tiers_) info_.busy_pages = std::max(info_.busy_pages, tier->info().busy_pages);
}

// The slots of a tier that is not the first have the tier's index, as those of allocate have.
class StackedTier::Source final : public PageSource {
 public:
  Source(std::size_t tier, std::shared_ptr<PageSource> source)
      : index_(SlotId(tier) << kTierShift), source_(std::move(source)) {}
  std::string name() const override { return source_->name(); }
  std::optional<RegionPlace> place() const override { return source_->place(); }
  std::uint64_t head_bytes() const override { return source_->head_bytes(); }
  std::uint64_t bytes() const override { return source_->bytes(); }
  Result<SlotId> lay_out(std::uint64_t page_bytes, std::uint32_t count) override {
    VMEM_ASSIGN(const SlotId first, source_->lay_out(page_bytes, count));
    return index_ | first;
  }

 private:
  const SlotId index_;
  const std::shared_ptr<PageSource> source_;
};

std::shared_ptr<PageSource> StackedTier::source_of(std::size_t tier, std::shared_ptr<PageSource> source) {
  return std::make_shared<Source>(tier, std::move(source));
}

TierUsage StackedTier::usage() const {
  TierUsage sum;
  for (const Tier* tier : tiers_) {
    const TierUsage each = tier->usage();
    sum.budget_bytes += each.budget_bytes;
    sum.used_bytes += each.used_bytes;
    sum.ready_bytes += each.ready_bytes;
  }
  return sum;
}

std::vector<std::uint64_t> StackedTier::places() const {
  std::vector<std::uint64_t> all;
  for (const Tier* tier : tiers_) {
    const std::vector<std::uint64_t> each = tier->places();
    all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

std::vector<std::uint64_t> StackedTier::obtainable_places() const {
  std::vector<std::uint64_t> all;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    const GrowingTier* const grows = abilities_[i].growing;
    const auto each = grows != nullptr ? grows->obtainable_places() : tiers_[i]->places();
    all.insert(all.end(), each.begin(), each.end());
  }
  return all;
}

void StackedTier::expect(std::uint64_t page_bytes, std::uint64_t count) {
  for (Tier* tier : tiers_) tier->expect(page_bytes, count);
}

std::vector<std::uint32_t> StackedTier::order() const {
  std::vector<std::uint32_t> all(tiers_.size());
  std::iota(all.begin(), all.end(), 0u);
  if (clock_ == nullptr) return all;
  std::ranges::stable_sort(all, {}, [&](std::uint32_t i) { return rates_.level(i); });
  const auto untried = [&](std::uint32_t i) { return !rates_.is_measured(i); };
  if (const auto found = std::find_if(all.begin() + 1, all.end(), untried); is_trial() && found != all.end())
    std::rotate(all.begin(), found, found + 1);
  return all;
}

// A tier that returns `later` ends the search. A failing tier is skipped, and its error returned
// only if no other tier has room. TIMEOUT takes precedence over other errors: it may be transient.
Result<SlotGrant> StackedTier::allocate(std::uint64_t page_bytes) {
  std::optional<Error> failed;
  ++allocations_;
  for (const std::uint32_t i : order()) {
    auto grant = tiers_[i]->allocate(page_bytes);
    if (!grant) {
      if (!failed || failed->status != VMEM_ERROR_TIMEOUT) failed = std::move(grant).error();
      continue;
    }
    if (grant->grant == Grant::full) continue;
    grant->slot |= SlotId{i} << kTierShift;
    return grant;
  }
  if (failed) return std::unexpected(*std::move(failed));
  return SlotGrant{};
}

void StackedTier::release(SlotId slot) { owner(slot).release(own_slot(slot)); }

Status StackedTier::submit(std::span<Transfer> transfers) {
  for (Transfer& transfer : transfers) transfer.id = 0;
  for (Transfer& transfer : transfers) {
    const SlotId slot = std::exchange(transfer.slot, own_slot(transfer.slot));
    Measured measured{.begun = {}, .may_be_skipped = transfer.if_changed};
    if (clock_ != nullptr)
      measured.begun = rates_.begins(slot >> kTierShift, transfer.direction, transfer.bytes, clock_->now_us());
    const Status submitted = owner(slot).submit({&transfer, 1});
    transfer.slot = slot;
    if (!submitted) rates_.ended(measured.begun, false, 0);
    if (!submitted) return submitted;
    if (clock_ != nullptr) in_flight_[transfer.id] = measured;
  }
  return {};
}

Status StackedTier::poll(std::vector<Completion>& completions) {
  Status result;
  const std::size_t before = completions.size();
  for (Tier* tier : tiers_) {
    if (auto polled = tier->poll(completions); !polled && result) result = std::move(polled);
  }
  measure(std::span(completions).subspan(before));
  return result;
}

void StackedTier::measure(std::span<const Completion> completions) {
  if (clock_ == nullptr || completions.empty()) return;
  const std::uint64_t now = clock_->now_us();
  for (const Completion& completion : completions) {
    const auto ended = in_flight_.extract(completion.id);
    if (ended.empty()) continue;
    const bool skipped = ended.mapped().may_be_skipped && !completion.changed;
    rates_.ended(ended.mapped().begun, completion.outcome == Outcome::done && !skipped, now);
  }
  if (rates_.update(now)) log_order();
}

void StackedTier::log_order() {
  const auto times = changed_.next();
  if (!times.logged) return;
  std::string words;
  for (const std::uint32_t i : order()) {
    const double rate = rates_.bytes_s(i);
    words += fmt::format("{}{} ({})", words.empty() ? "" : ", then ", tiers_[i]->info().name,
                         rate == 0 ? "not measured yet" : format_bytes(static_cast<std::uint64_t>(rate)) + "/s");
  }
  VMEM_LOG_INFO("new pages below host memory go, by measured rates, to {} ({} changes of the order)", words,
                times.count);
}

bool StackedTier::degraded(SlotId slot) const { return abilities(slot).degraded(own_slot(slot)); }

bool StackedTier::loads_into_frames(SlotId slot, int device) const {
  return abilities(slot).loads_into_frames(own_slot(slot), device);
}

// Of queues beyond 2^22 of a tier, some share a number.
std::uint32_t StackedTier::queue(SlotId slot) const {
  const std::uint32_t own = abilities(slot).queue(own_slot(slot)) & ((1u << kQueueShift) - 1);
  return (slot >> kTierShift) << kQueueShift | own;
}

void StackedTier::hurry(std::uint64_t transfer) {
  for (const Abilities& each : abilities_) each.hurry(transfer);
}

std::string StackedTier::where(SlotId slot) const { return owner(slot).where(own_slot(slot)); }

Finished StackedTier::finish() noexcept {
  auto all = Finished::all_ended;
  for (Tier* tier : tiers_) {
    if (tier->finish() == Finished::quarantined) all = Finished::quarantined;
  }
  return all;
}

}  // namespace vmem::tiers
