#include "tiers/stacked_tier.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace vmem::tiers {

StackedTier::StackedTier(std::vector<Tier*> preferred) : tiers_(std::move(preferred)) {
  for (const Tier* tier : tiers_) name_ += (name_.empty() ? "" : ", then ") + std::string(tier->info().name);
  info_.name = name_;
  for (Tier* tier : tiers_) abilities_.emplace_back(tier);
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

void StackedTier::expect(std::uint64_t page_bytes, std::uint64_t count) {
  for (Tier* tier : tiers_) tier->expect(page_bytes, count);
}

// A tier that returns `later` ends the search. A failing tier is skipped, and its error returned
// only if no other tier has room. TIMEOUT takes precedence over other errors: it may be transient.
Result<SlotGrant> StackedTier::allocate(std::uint64_t page_bytes) {
  std::optional<Error> failed;
  for (std::size_t i = 0; i < tiers_.size(); ++i) {
    auto grant = tiers_[i]->allocate(page_bytes);
    if (!grant) {
      if (!failed || failed->status != VMEM_ERROR_TIMEOUT) failed = std::move(grant).error();
      continue;
    }
    if (grant->grant == Grant::full) continue;
    grant->slot |= static_cast<SlotId>(i) << kTierShift;
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
    const Status submitted = owner(slot).submit({&transfer, 1});
    transfer.slot = slot;
    if (!submitted) return submitted;
  }
  return {};
}

Status StackedTier::poll(std::vector<Completion>& completions) {
  Status result;
  for (Tier* tier : tiers_) {
    if (auto polled = tier->poll(completions); !polled && result) result = std::move(polled);
  }
  return result;
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
