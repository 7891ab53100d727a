// Whether pages can be used now, and what is still needed.
#pragma once

#include <cstdint>

#include "base/status.hpp"
#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "pagetable/region.hpp"

namespace vmem::runtime {

using migration::PageRun;

// Ordered by how much is missing. ready: nothing. attention: the pages are accessible, but one has
// a load in flight, is used in place, or has a first use to report. absent: a page does not allow
// the access or is lost, so the mover must be asked.
enum class Usability { ready, attention, absent };

// REQUIRES: the caller has published a hold on the range.
Usability usability(const PageRun& range, pagetable::Access access);

// Errors: UNSUPPORTED for a stream of a device or context that vmem does not use.
Status check_device(const migration::StreamRecord& record);

// What a thread does before it queues work on accessible pages. Any thread.
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
