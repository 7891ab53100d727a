// Combines tiers in order of preference: allocate uses the first tier with room. All tiers move
// host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tiers/abilities.hpp"
#include "tiers/page_source.hpp"

namespace vmem::tiers {

class StackedTier final : public Tier, public FrameLoadingTier, public DegradableTier, public QueueingTier {
 public:
  static constexpr std::size_t kMostTiers = 3;
  // REQUIRES: 1 to kMostTiers tiers, which outlive this.
  explicit StackedTier(std::vector<Tier*> preferred);

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

 private:
  class Source;
  // The two highest bits of a slot are the index of its tier.
  static constexpr std::uint32_t kTierShift = 30;
  static constexpr std::uint32_t kQueueShift = 22;
  static SlotId own_slot(SlotId slot) { return slot & ((SlotId{1} << kTierShift) - 1); }
  Tier& owner(SlotId slot) const { return *tiers_[slot >> kTierShift]; }
  const Abilities& abilities(SlotId slot) const { return abilities_[slot >> kTierShift]; }

  const std::vector<Tier*> tiers_;
  std::vector<Abilities> abilities_;  // by tier
  std::string name_;
  TierInfo info_;
};

}  // namespace vmem::tiers
