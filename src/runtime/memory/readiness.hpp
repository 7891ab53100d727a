// Whether pages can be used now, and what is still needed.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "pagetable/region.hpp"

namespace vmem::runtime {

using migration::PageRun;

// In the order of what is needed. ready: nothing. attention: the mover is to hear of the use, or a
// transfer is in flight. absent: the mover must bring pages in.
enum class Usability { ready, attention, absent };

// REQUIRES: the caller has published a hold on the range.
Usability usability(const PageRun& range, pagetable::Access access);

// Errors: UNSUPPORTED for a stream of a device or context that vmem does not use.
Status check_device(const migration::StreamRecord& record);

// Asks the mover for what pages lack. Any thread.
class Readiness {
 public:
  Readiness(const gpu::Driver& driver, migration::Mover& mover) : driver_(driver), mover_(mover) {}
  // Makes the stream wait for transfers in flight into the pages. Tells the mover of the first use
  // of prefetched pages.
  Status order_after_loads(const PageRun& range, CUstream stream) const;
  // Opens the region to the stream's device, if it is another one's.
  Status open_to(const PageRun& range, const migration::StreamRecord& record) const;

 private:
  const gpu::Driver& driver_;
  migration::Mover& mover_;
};

}  // namespace vmem::runtime
