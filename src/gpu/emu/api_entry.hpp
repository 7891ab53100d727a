// Shared by the entry points: the calling thread's state, and the checks at the start of every
// call.
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
  // A null stream means the thread's own: true in calls of per-thread variants (per_thread.cpp).
  bool null_is_per_thread = false;
};
ThreadState& this_thread();

// Releases pinned host memory that has been removed from machine().pinned().
void release_pinned(const PinnedRanges::Range& range);

// The driver does not survive fork: in the child every call fails.
void mark_forked_child();

// Each returns CUDA_SUCCESS, or the result that the entry point must return at once. As on the real
// driver, virtual memory management needs no context and continues after a fault. Work on a stream
// needs no current context.
CUresult enter();                                                  // initialised
CUresult enter(std::shared_ptr<Context>& context);                 // plus: a usable current context
CUresult enter(CUstream handle, std::shared_ptr<Stream>& stream);  // plus: a stream, context usable
CUresult check_unsafe_call();                                      // no capture forbids it

// For cuGetProcAddress: the variant of a function whose null stream is the calling thread's; null
// if the function has none.
void* per_thread_variant(std::string_view name);

// Queues work on a stream, or adds it as a node to the stream's capture.
CUresult submit(const std::shared_ptr<Stream>& stream, NodeWork work);
// For work that no node type represents; a capture of it fails.
CUresult submit(const std::shared_ptr<Stream>& stream, Work work, Wait wait = {});

}  // namespace vmem::emu

// Returns from the entry point unless `call` succeeds.
#define VMEM_EMU_TRY(call)                                                                                \
  do {                                                                                                    \
    if (const CUresult vmem_emu_result = (call); vmem_emu_result != CUDA_SUCCESS) return vmem_emu_result; \
  } while (false)

// Follows an entry point's `try` block: no exception reaches the program. The call fails if there
// is no memory for bookkeeping, or no thread for a stream.
#define VMEM_EMU_CATCH               \
  catch (const std::bad_alloc&) {    \
    return CUDA_ERROR_OUT_OF_MEMORY; \
  }                                  \
  catch (const std::system_error&) { \
    return CUDA_ERROR_OUT_OF_MEMORY; \
  }
