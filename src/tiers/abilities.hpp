// A tier with its optional abilities, which are looked up once, when the tier is registered.
#pragma once

#include "tiers/tier.hpp"

namespace vmem::tiers {

struct Abilities {
  Abilities() = default;
  explicit Abilities(Tier* tier);  // null: no tier

  // Null: the tier does not have the ability.
  ComparingTier* comparing = nullptr;
  FrameLoadingTier* frame_loading = nullptr;
  DegradableTier* degradable = nullptr;
  YieldingTier* yielding = nullptr;
  QueueingTier* queueing = nullptr;
  PinningTier* pinning = nullptr;
  GrowingTier* growing = nullptr;

  // What holds without the ability.
  std::optional<gpu::Fingerprint> fingerprint(SlotId slot) const {
    return comparing != nullptr ? comparing->fingerprint(slot) : std::nullopt;
  }
  bool can_compare(int device) const { return comparing != nullptr && comparing->can_compare(device); }
  bool loads_into_frames(SlotId slot, int device) const {
    return frame_loading != nullptr && frame_loading->loads_into_frames(slot, device);
  }
  std::uint32_t queue(SlotId slot) const { return queueing != nullptr ? queueing->queue(slot) : 0; }
  void hurry(std::uint64_t transfer) const {
    if (queueing != nullptr) queueing->hurry(transfer);
  }
  bool degraded(SlotId slot) const { return degradable != nullptr && degradable->degraded(slot); }
};

}  // namespace vmem::tiers
