// A page's contents as a whole: all of its copies, and what ends with them.
#pragma once

#include "migration/core.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/below.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"

namespace vmem::migration {

class Contents {
 public:
  Contents(Transfers& transfers, Devices& devices, NearSlots& near, Below& below)
      : transfers_(transfers), devices_(devices), near_(near), below_(below) {}

  // The page's contents are from before its last death: worthless.
  static bool of_earlier_life(PageRef ref) { return ref.page().life < ref.region->last_death(ref.index); }
  // Resets the page to never written. REQUIRES: unmapped, outlived or already forgotten.
  void forget(PageRef ref);
  // The bytes in the page's free frame are about to be outdated, or are no longer wanted.
  void drop_standby(PageRef ref);
  // Undoes KeepRequest.
  void keep_no_longer(PageRef ref);

 private:
  Transfers& transfers_;
  Devices& devices_;
  NearSlots& near_;
  Below& below_;
};

}  // namespace vmem::migration
