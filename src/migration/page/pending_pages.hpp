// Pages that are mapped while a transfer into their memory is in flight: GPU work on them waits for
// it in stream order.
#pragma once

#include <cstdint>
#include <vector>

#include "migration/page/residency.hpp"
#include "migration/page/transfers.hpp"

namespace vmem::migration {

class PendingPages {
 public:
  PendingPages(const Transfers& transfers, Residency& residency) : transfers_(transfers), residency_(residency) {}

  // Makes work on the page wait for the transfer, if it is in flight. Returns the state flags for
  // the caller to publish.
  std::uint32_t wait_for(PageRef ref, std::uint64_t transfer);
  // After transfers have ended.
  void settle();
  void forget(const Region& region);
  bool empty() const { return pages_.empty(); }

 private:
  const Transfers& transfers_;
  Residency& residency_;
  std::vector<PageRef> pages_;
};

}  // namespace vmem::migration
