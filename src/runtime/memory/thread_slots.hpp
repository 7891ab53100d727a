// The slots in which threads publish what they hold.
#pragma once

#include <memory>

#include "base/status.hpp"
#include "pagetable/holds.hpp"
#include "runtime/assembly/devices.hpp"

namespace vmem::runtime {

// Every method but `registry` concerns the calling thread.
class ThreadSlots {
 public:
  explicit ThreadSlots(const Devices& devices) : devices_(devices) {}

  // Claims a slot at the thread's first call; it is given back when the thread ends. Errors:
  // UNSUPPORTED for an ending thread, or too many threads.
  Result<pagetable::ThreadSlot*> current();
  // Null if the thread never had a slot or is ending.
  const pagetable::ThreadSlot* known() const;
  // The default streams belong to the current context. A thread without one gets the first
  // device's, as with the CUDA runtime.
  Status ensure_context() const;
  pagetable::ThreadRegistry& registry() { return *registry_; }

 private:
  const Devices& devices_;
  std::shared_ptr<pagetable::ThreadRegistry> registry_ = std::make_shared<pagetable::ThreadRegistry>();
};

}  // namespace vmem::runtime
