// Several tiers as one, in order of preference: a slot is of the first that has room. All move host memory.
#pragma once

#include <string>

#include "tiers/tier.hpp"

namespace vmem::tiers {

class StackedTier final : public Tier {
 public:
  static constexpr std::size_t kMostTiers = 3;
  // REQUIRES: one to kMostTiers, which outlive this.
  explicit StackedTier(std::vector<Tier*> preferred);

  const TierInfo& info() const noexcept override { return info_; }
  TierUsage usage() const override;
  std::vector<std::uint64_t> places() const override;
  void expect(std::uint64_t page_bytes, std::uint64_t count) override;
  Result<SlotGrant> allocate(std::uint64_t page_bytes) override;
  void release(SlotId slot) override;
  Status submit(std::span<Transfer> transfers) override;
  Status poll(std::vector<Completion>& completions) override;
  void finish() noexcept override;
  bool quarantined() const noexcept override;
  std::string where(SlotId slot) const override;
  bool kept(SlotId slot) const override;
  bool reaches(SlotId slot, int device) const override;

 private:
  // The two highest bits of a slot say whose it is.
  static constexpr std::uint32_t kTierShift = 30;
  static SlotId own_slot(SlotId slot) { return slot & ((SlotId{1} << kTierShift) - 1); }
  Tier& owner(SlotId slot) const { return *tiers_[slot >> kTierShift]; }

  const std::vector<Tier*> tiers_;
  std::string name_;
  TierInfo info_;
};

}  // namespace vmem::tiers
