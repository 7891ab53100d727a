// Acquire and release. On resident memory both stay in the calling thread: no lock, no system call,
// no allocation. This thread publishes the hold, then checks the page states. It logs the use, then
// clears the hold. The mover goes the other way: it withdraws a page, then reads holds, then logs.
#pragma once

#include <span>

#include "base/status.hpp"
#include "runtime/memory/addresses.hpp"
#include "runtime/memory/readiness.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "trace/recorder.hpp"

namespace vmem::runtime {

// Any thread; a range is released by the thread that acquired it.
class HitPath {
 public:
  struct Parts {
    const gpu::Driver& driver;
    const pagetable::AddressSpace& space;
    migration::Mover& mover;
    migration::StreamTable& streams;
    ThreadSlots& slots;
    const AddressResolver& addresses;
    const Readiness& readiness;
    const trace::Recorder* recorder;  // null: no trace
  };
  explicit HitPath(const Parts& parts) : parts_(parts) {}

  // Errors: INVALID_VALUE, INVALID_POINTER, INVALID_RANGE, UNSUPPORTED (a capturing stream), LOST,
  // OUT_OF_MEMORY, TIMEOUT; those of the driver. Throws std::bad_alloc. Then nothing is held.
  Status acquire(std::span<const vmem_range> ranges, vmem_stream stream);
  // Errors: NOT_ACQUIRED, those of StreamTable::find and ThreadSlots::current: nothing is released.
  // Those of StreamTable::count_use: all is released. Throws std::bad_alloc: nothing is released.
  Status release(std::span<const vmem_range> ranges, vmem_stream stream);

 private:
  // One call's ranges, and what it has published for them.
  struct Call;
  Status check_stream(const migration::StreamRecord& record, CUstream stream) const;
  Status publish_each(Call& call) const;
  Status publish(Call& call, std::size_t i) const;
  Status make_ready(const Call& call) const;
  Status bring_in(const Call& call) const;
  migration::AcquireRequest::Want want_of(const vmem_range& range, const PageRun& located) const;

  const Parts parts_;
};

}  // namespace vmem::runtime
