// Initialisation, contexts, and the state of calling threads.
#include <deque>
#include <mutex>
#include <utility>

#include "gpu/emu/api_entry.hpp"

namespace vmem::emu {
namespace {

std::atomic<bool> in_forked_child{false};

// Creates a device's primary context, always under the same handle. REQUIRES: the device's
// primary_mutex.
void begin_primary(Device& device) {
  device.primary = std::make_shared<Context>(machine().device_ref(device.ordinal));
  if (device.primary_handle)
    machine().contexts.insert_again(device.primary_handle, device.primary);
  else
    device.primary_handle = machine().contexts.insert(device.primary);
}

// Destroys a device's primary context. REQUIRES: its primary_mutex.
void end_primary(Device& device) {
  const std::shared_ptr<Context> context = std::move(device.primary);
  device.primary = nullptr;
  Machine& m = machine();
  m.contexts.erase(device.primary_handle);
  context->destroy();
  for (const auto& range : m.pinned().erase_owned_by(context.get())) release_pinned(range);
  const auto ours = [&](const auto& object) { return object.context.get() == context.get(); };
  m.arrays.erase_if(ours);
  m.events.erase_if(ours);
  m.functions.erase_if(ours);
  m.modules.erase_if(ours);
  m.textures.erase_if(ours);
  m.streams.erase_if([&](const Stream& stream) { return stream.context() == context; });
  for (int owner = 0; Device* other = m.device(owner); ++owner) {
    const std::uint32_t bit = 1u << device.ordinal;
    if (other->peer_accessors.fetch_and(~bit) & bit) m.addresses().set_heap_access(owner, device.ordinal, Access::none);
  }
}

CUresult set_current(CUcontext handle, bool push) {
  VMEM_EMU_TRY(enter());
  auto& contexts = this_thread().contexts;
  if (handle ? !machine().contexts.find(handle) : push) return CUDA_ERROR_INVALID_CONTEXT;
  if (!push && !contexts.empty()) contexts.pop_back();
  if (handle) contexts.push_back(handle);
  return CUDA_SUCCESS;
}

}  // namespace

ThreadState::~ThreadState() {
  for (auto& [context, stream] : per_thread_streams) {
    stream->close();
    if (stream->idle()) stream->context()->forget_stream(stream.get());
  }
}

ThreadState& this_thread() {
  // Trivial, so that destructors of other thread-local variables can still call the driver.
  static constinit thread_local ThreadState* state = nullptr;
  static constinit thread_local bool ended = false;
  struct Owner {
    ~Owner() {
      delete std::exchange(state, nullptr);
      ended = true;
    }
  };
  if (state) return *state;
  if (ended) {
    // Nothing signals the thread's last call, so this state is kept.
    static std::mutex mutex;
    static auto* const kept = new std::deque<ThreadState>;
    const std::lock_guard lock(mutex);
    state = &kept->emplace_back();
    return *state;
  }
  static thread_local Owner owner;
  (void)&owner;
  state = new ThreadState;
  return *state;
}

void mark_forked_child() { in_forked_child.store(true, std::memory_order_relaxed); }

CUresult enter() {
  if (!machine().initialized() || in_forked_child.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  return CUDA_SUCCESS;
}

CUresult enter(std::shared_ptr<Context>& context) {
  VMEM_EMU_TRY(enter());
  const auto& contexts = this_thread().contexts;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  context = machine().contexts.find(contexts.back());
  return context ? context->usable() : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult check_unsafe_call() { return captures::check_unsafe_call(this_thread().capture_mode); }

}  // namespace vmem::emu

using namespace vmem::emu;

CUresult cuInit(unsigned flags) try {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (in_forked_child.load(std::memory_order_relaxed)) return CUDA_ERROR_NOT_INITIALIZED;
  return machine().initialize();
}
VMEM_EMU_CATCH

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(device->primary_mutex);
  if (!device->primary) begin_primary(*device);
  ++device->primary_references;
  *context = device->primary_handle;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(device->primary_mutex);
  if (device->primary_references == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->primary_references == 0 && device->primary) end_primary(*device);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

// The references survive the reset.
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) try {
  VMEM_EMU_TRY(enter());
  Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(device->primary_mutex);
  if (device->primary) end_primary(*device);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned* flags, int* active) try {
  VMEM_EMU_TRY(enter());
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  Device* device = machine().device(ordinal);
  if (!device) return CUDA_ERROR_INVALID_DEVICE;
  const std::lock_guard lock(device->primary_mutex);
  *flags = 0;
  *active = device->primary != nullptr;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuCtxGetCurrent(CUcontext* context) try {
  VMEM_EMU_TRY(enter());
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  const auto& contexts = this_thread().contexts;
  *context = contexts.empty() ? nullptr : contexts.back();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuCtxSetCurrent(CUcontext context) try { return set_current(context, false); }
VMEM_EMU_CATCH
CUresult cuCtxPushCurrent(CUcontext context) try { return set_current(context, true); }
VMEM_EMU_CATCH

CUresult cuCtxPopCurrent(CUcontext* context) try {
  VMEM_EMU_TRY(enter());
  auto& contexts = this_thread().contexts;
  if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuCtxGetDevice(CUdevice* device) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = context->device().ordinal;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuCtxSynchronize() try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  VMEM_EMU_TRY(check_unsafe_call());
  context->synchronize();
  context->heap().trim();
  return context->usable();
}
VMEM_EMU_CATCH

CUresult cuCtxSynchronize_v2(CUcontext handle) try {
  VMEM_EMU_TRY(cuCtxPushCurrent(handle));
  const CUresult result = cuCtxSynchronize();
  CUcontext popped = nullptr;
  (void)cuCtxPopCurrent(&popped);
  return result;
}
VMEM_EMU_CATCH

CUresult cuCtxEnablePeerAccess(CUcontext peer_handle, unsigned flags) try {
  std::shared_ptr<Context> context;
  VMEM_EMU_TRY(enter(context));
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const auto peer = machine().contexts.find(peer_handle);
  if (!peer || peer == context) return CUDA_ERROR_INVALID_CONTEXT;
  Device& owner = peer->device();
  const int ordinal = context->device().ordinal;
  if (!owner.to_peer[static_cast<std::size_t>(ordinal)]) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  const std::uint32_t bit = 1u << ordinal;
  if (owner.peer_accessors.fetch_or(bit) & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
  machine().addresses().set_heap_access(owner.ordinal, ordinal, Access::read_write);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH
