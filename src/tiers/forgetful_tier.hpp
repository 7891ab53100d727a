// An optional ability of a tier: to know that what was stored with it is gone, before anybody asks for it.
#pragma once

#include "tiers/tier.hpp"

namespace vmem::tiers {

class ForgetfulTier {
 public:
  virtual ~ForgetfulTier() = default;
  // Whether the slot still has all the copies that it could have now. If not, whoever has the bytes elsewhere stores them anew
  // (`if_changed`: only what is missing is copied).
  virtual bool kept(SlotId slot) const = 0;
};

}  // namespace vmem::tiers
