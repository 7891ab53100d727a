// Disks and nodes that do not respond. Calls that wait for them end after a given time. Their
// transfers stay in the ledger, and the memory that these read or write stays allocated, until the
// tier reports their end.
#pragma once

#include <string>
#include <vector>

#include "migration/core.hpp"
#include "migration/page/transfers.hpp"
#include "migration/place/below.hpp"
#include "migration/place/devices.hpp"
#include "migration/place/near_slots.hpp"

namespace vmem::migration {

class Stuck {
 public:
  Stuck(const Core& core, const Transfers& transfers, const Devices& devices, const NearSlots& near, const Below& below)
      : core_(core), transfers_(transfers), devices_(devices), near_(near), below_(below) {}

  // The error of a call that waited too long for the page: the reason, and the page's location.
  Error unserved_error(PageRef ref) const;
  // True if transfers are in flight, all of them are stuck, and no ending region waits for anything
  // else.
  bool all_stuck(const std::vector<Region*>& ending) const;
  // The disk, node or file of the oldest transfer in flight; empty if none is with a tier below
  // host memory.
  std::string place() const;
  std::string words() const;

 private:
  bool stuck(const InFlight& transfer) const;

  const Core& core_;
  const Transfers& transfers_;
  const Devices& devices_;
  const NearSlots& near_;
  const Below& below_;
};

}  // namespace vmem::migration
