// Combines tiers in order of preference: allocate uses the first tier with room. With a clock,
// tiers that are measured to be faster go first, and kTrialPages of kTrialEvery pages go to a tier
// that was not measured yet: together, since a disk is fast with several pages in flight. All tiers
// move host memory.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "base/log_limit.hpp"
#include "tiers/abilities.hpp"
#include "tiers/page_source.hpp"
#include "tiers/place_rates.hpp"

namespace vmem::tiers {

class StackedTier final : public Tier,
                          public FrameLoadingTier,
                          public DegradableTier,
                          public QueueingTier,
                          public GrowingTier {
 public:
  static constexpr std::size_t kMostTiers = 3;
  static constexpr std::uint64_t kTrialEvery = 128, kTrialPages = PlaceRates::kMeasured;
  // REQUIRES: 1 to kMostTiers tiers, at most one of them a GrowingTier, which outlive this, as does
  // the clock. Null: the order stays.
  explicit StackedTier(std::vector<Tier*> preferred, const Clock* clock = nullptr);

  // The source of one of the tiers, by its index, as a source of this tier.
  static std::shared_ptr<PageSource> source_of(std::size_t tier, std::shared_ptr<PageSource> source);

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  std::vector<std::uint64_t> places() const override;
  void expect(std::uint64_t page_bytes, std::uint64_t count) override;
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  Finished finish() noexcept override;
  std::string where(SlotId slot) const override;
  bool degraded(SlotId slot) const override;
  bool loads_into_frames(SlotId slot, int device) const override;
  std::uint32_t queue(SlotId slot) const override;
  void hurry(std::uint64_t transfer) override;
  // The growing tier is told all that is needed, as if it were alone: where it is faster than the
  // others, pages go there first.
  std::uint64_t need(std::uint64_t bytes) override { return growing_ == nullptr ? 0 : growing_->need(bytes); }
  bool was_answered(std::uint64_t ticket) const override {
    return growing_ == nullptr || growing_->was_answered(ticket);
  }
  std::uint64_t changes() const override { return growing_ == nullptr ? 0 : growing_->changes(); }
  std::vector<std::uint64_t> obtainable_places() const override;
  std::string shortage() const override { return growing_ == nullptr ? "" : growing_->shortage(); }

 private:
  class Source;
  // The two highest bits of a slot are the index of its tier.
  static constexpr std::uint32_t kTierShift = 30;
  static constexpr std::uint32_t kQueueShift = 22;
  static SlotId own_slot(SlotId slot) { return slot & ((SlotId{1} << kTierShift) - 1); }
  Tier& owner(SlotId slot) const { return *tiers_[slot >> kTierShift]; }
  const Abilities& abilities(SlotId slot) const { return abilities_[slot >> kTierShift]; }
  std::vector<std::uint32_t> order() const;
  bool is_trial() const { return allocations_ % kTrialEvery >= kTrialEvery - kTrialPages; }
  void measure(std::span<const Completion> completions);
  void log_order();

  const std::vector<Tier*> tiers_;
  std::vector<Abilities> abilities_;  // by tier
  GrowingTier* growing_ = nullptr;    // null: none grows
  const Clock* const clock_;
  std::string name_;
  TierInfo info_;
  // With a clock.
  struct Measured {
    PlaceRates::Begun begun;
    bool may_be_skipped = false;  // a store of what may be there already
  };
  PlaceRates rates_;
  std::unordered_map<std::uint64_t, Measured> in_flight_;  // by transfer
  std::uint64_t allocations_ = 0;
  LogLimit changed_;
};

}  // namespace vmem::tiers
