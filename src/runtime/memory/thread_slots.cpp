#include "runtime/memory/thread_slots.hpp"

#include <utility>

#include "base/process.hpp"

namespace vmem::runtime {

using pagetable::ThreadRegistry;
using pagetable::ThreadSlot;

namespace {

// The calling thread's slot. Trivially destructible, so that destructors of other thread-local
// variables can still call vmem.
struct CurrentSlot {
  const ThreadRegistry* registry;
  ThreadSlot* slot;
  bool ended;
};
constinit thread_local CurrentSlot current_slot{nullptr, nullptr, false};

// Gives the slot back when the thread ends. The registry outlives the slot in any order of
// destruction.
struct SlotOwner {
  std::shared_ptr<ThreadRegistry> registry;
  void give_back() {
    if (current_slot.slot != nullptr) registry->give_back(std::exchange(current_slot.slot, nullptr));
  }
  ~SlotOwner() {
    if (!process::forked()) give_back();  // a forked child may inherit the registry's mutex locked
    current_slot = {nullptr, nullptr, true};
  }
};
thread_local SlotOwner slot_owner;

}  // namespace

Result<ThreadSlot*> ThreadSlots::current() {
  if (current_slot.registry == registry_.get()) [[likely]]
    return current_slot.slot;
  if (current_slot.ended) return fail(VMEM_ERROR_UNSUPPORTED, "this thread is ending and can hold nothing any more");
  VMEM_TRY(ensure_context());
  ThreadSlot* slot = registry_->claim();
  if (slot == nullptr) return fail(VMEM_ERROR_UNSUPPORTED, "too many threads use vmem at once (4096)");
  slot_owner.give_back();
  slot_owner.registry = registry_;
  current_slot = {registry_.get(), slot, false};
  return slot;
}

const ThreadSlot* ThreadSlots::known() const {
  return current_slot.registry == registry_.get() ? current_slot.slot : nullptr;
}

Status ThreadSlots::ensure_context() const {
  const Device& first = devices_.front();
  CUcontext current = nullptr;
  VMEM_TRY(first.driver->check((*first.driver)->cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  if (current != nullptr) return {};
  return first.driver->check((*first.driver)->cuCtxSetCurrent(first.context), "cuCtxSetCurrent");
}

}  // namespace vmem::runtime
