// Creates and ends regions: allocations with pages of their own, and the slabs of small ones.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.hpp"
#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "runtime/memory/move_gate.hpp"

namespace vmem::runtime {

using migration::RegionKind;

// Any thread.
class Regions {
 public:
  Regions(migration::Mover& mover, migration::StreamTable& streams, MoveGate& gate)
      : mover_(mover), streams_(streams), gate_(gate) {}

  // `device`: index. Errors: OUT_OF_MEMORY, ADDRESS_SPACE, TIMEOUT.
  Result<pagetable::Region*> allocate(std::size_t bytes, int device, RegionKind kind);
  // The next pages of a region of shared pages begin, committed. Returns the first of them.
  Result<std::uint32_t> extend(pagetable::Region& region, std::uint32_t pages);
  // Of such a region, further pages are committed, or given up. See CommitRequest.
  Status commit(pagetable::Region& region, std::uint32_t pages, migration::CommitRequest::What what);
  // A read-only region whose pages are read from the source on use.
  Result<pagetable::Region*> map(std::shared_ptr<tiers::PageSource> source, int device);
  // Ends the region after its logged uses and the work that the stream has queued. `first_granule`:
  // see FreeRequest. Errors: IN_USE while a thread holds it.
  Status free(pagetable::Region& region, std::uint32_t first_granule, vmem_stream stream);
  // The same for a published region: see FreeRequest::joint.
  Status close(pagetable::Region& region, std::uint32_t first_granule, vmem_stream stream);
  // Errors: those of free and close for the stream.
  Status check_stream(vmem_stream stream) const;
  // The same without a stream. REQUIRES: every use of the region is logged or noted.
  Status free_unused(pagetable::Region& region, std::uint32_t first_granule);
  // Called when this node has no addresses left for so many bytes: makes room, or says why not.
  // REQUIRES: no region yet.
  void on_full(std::function<Status(std::uint64_t bytes)> more) { more_ = std::move(more); }
  // Drained mode: makes the whole region accessible; all that was accessible stays so. In other
  // modes does nothing.
  Status make_accessible_if_drained(pagetable::Region& region);

 private:
  Result<pagetable::Region*> make(migration::AllocateRequest& request);
  Status end(migration::FreeRequest& request, vmem_stream stream);

  migration::Mover& mover_;
  migration::StreamTable& streams_;
  MoveGate& gate_;
  std::function<Status(std::uint64_t bytes)> more_;
};

}  // namespace vmem::runtime
