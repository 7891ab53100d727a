// What the entry points have in common: the state of the calling thread, and the checks that come first in every call.
#pragma once

#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <system_error>
#include <vector>

#include "gpu/emu/cuda_api.hpp"
#include "gpu/emu/machine.hpp"

namespace vmem::emu {

struct ThreadState {
  ThreadState() = default;
  ~ThreadState();  // closes the thread's per-thread streams
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  std::vector<CUcontext> contexts;  // the stack of current contexts
  std::map<const Context*, std::shared_ptr<Stream>> per_thread_streams;
  CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  bool null_is_per_thread = false;  // in a call of a per-thread variant (per_thread.cpp): what a null stream means
};
ThreadState& this_thread();

// Gives pinned host memory back that is no longer among machine().pinned().
void release_pinned(const PinnedRanges::Range& range);

// The driver does not survive fork: in the child every call fails.
void mark_forked_child();

// Each returns what the entry point must return at once, unless it is CUDA_SUCCESS. As on the real driver, virtual
// memory management needs no context and goes on after a fault, and work on a stream needs no current context.
CUresult enter();                                                  // initialised
CUresult enter(std::shared_ptr<Context>& context);                 // and a usable context is current
CUresult enter(CUstream handle, std::shared_ptr<Stream>& stream);  // and the stream exists in a usable context
CUresult check_unsafe_call();                                      // no capture forbids it

// What cuGetProcAddress gives for a function whose null stream is the calling thread's; null: it has no such variant.
void* per_thread_variant(std::string_view name);

// Queues work on a stream, or leaves it as a node in the stream's capture.
CUresult submit(const std::shared_ptr<Stream>& stream, NodeWork work);
// Work that no node stands for; a capture of it fails.
CUresult submit(const std::shared_ptr<Stream>& stream, Work work);

}  // namespace vmem::emu

// Returns from the entry point unless `call` succeeds.
#define VMEM_EMU_TRY(call)                                                                                \
  do {                                                                                                    \
    if (const CUresult vmem_emu_result = (call); vmem_emu_result != CUDA_SUCCESS) return vmem_emu_result; \
  } while (false)

// Behind an entry point's `try` block: no exception reaches the program. Without memory for bookkeeping, or for a stream's
// thread, the call fails.
#define VMEM_EMU_CATCH               \
  catch (const std::bad_alloc&) {    \
    return CUDA_ERROR_OUT_OF_MEMORY; \
  }                                  \
  catch (const std::system_error&) { \
    return CUDA_ERROR_OUT_OF_MEMORY; \
  }
