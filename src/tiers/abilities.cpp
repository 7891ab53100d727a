#include "tiers/abilities.hpp"

namespace vmem::tiers {

Abilities::Abilities(Tier* tier)
    : comparing(dynamic_cast<ComparingTier*>(tier)),
      frame_loading(dynamic_cast<FrameLoadingTier*>(tier)),
      degradable(dynamic_cast<DegradableTier*>(tier)),
      yielding(dynamic_cast<YieldingTier*>(tier)),
      queueing(dynamic_cast<QueueingTier*>(tier)),
      pinning(dynamic_cast<PinningTier*>(tier)),
      growing(dynamic_cast<GrowingTier*>(tier)) {}

}  // namespace vmem::tiers
