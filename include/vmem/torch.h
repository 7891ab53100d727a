/**
 * @file
 * PyTorch's pluggable allocator (torch.cuda.memory.CUDAPluggableAllocator), exported by
 * libvmem_preload.so. `vmem.torch` installs these functions; a program may also install them
 * itself. The pages of every tensor move between GPU memory and the other tiers, so vmem must see
 * every kernel launch. In a process that was not started with the library (`vmem run`,
 * vmem.torch.enable) the functions refuse.
 *
 * Every function may be called from any thread.
 */
#ifndef VMEM_TORCH_H
#define VMEM_TORCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "vmem/vmem.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Allocates GPU memory, 256-byte aligned. When every tier is full it throws torch.OutOfMemoryError
 * if the process's libc10 supports that, otherwise the error that becomes a Python RuntimeError,
 * with vmem's message. Without libc10 it returns NULL.
 * @param bytes 0 or less give NULL
 * @param device CUDA ordinal
 * @param stream the work that uses the memory first
 */
VMEM_API void* vmem_torch_alloc(ssize_t bytes, int device, vmem_stream stream);
/**
 * Frees in stream order: the block serves the next allocation of its size on that stream. An error
 * is logged.
 * @param ptr as from vmem_torch_alloc; NULL is ignored
 * @param bytes as of the allocation
 * @param device as of the allocation
 * @param stream the work that used the memory last
 */
VMEM_API void vmem_torch_free(void* ptr, ssize_t bytes, int device, vmem_stream stream);
/**
 * Declares a further use of the block on `stream`: once freed, the block is reused only after the
 * work queued on that stream by then. An error is logged.
 * @param ptr as from vmem_torch_alloc; NULL is ignored
 * @param stream the other stream
 */
VMEM_API void vmem_torch_record_stream(void* ptr, vmem_stream stream);
/**
 * Whether the live blocks of a private pool (of a CUDA graph) are exactly these `count` pointers.
 * Pools begin and end with vmem_torch_begin_allocate_to_pool, vmem_torch_end_allocate_to_pool and
 * vmem_torch_release_pool, whose parameters are the C++ types of PyTorch's setters of these names.
 * @param device CUDA ordinal
 * @param id_first first half of the pool's id (c10::MempoolId_t)
 * @param id_second second half
 * @param ptrs `count` pointers, in any order
 * @param count number of pointers
 */
VMEM_API int vmem_torch_pool_holds(int device, uint64_t id_first, uint64_t id_second, void* const* ptrs, size_t count);
/** Frees cached blocks of all devices (torch.cuda.empty_cache). An error is logged. */
VMEM_API void vmem_torch_empty_cache(void);

/**
 * For torch.cuda.memory_stats: of one device, since the process began. Names that end in _bytes and
 * those with _bytes_ are bytes, others are counts.
 */
typedef struct vmem_torch_statistics {
  uint64_t allocated_bytes;       /**< live blocks, as requested */
  uint64_t allocated_bytes_peak;  /**< most at one time since the last reset */
  uint64_t allocated_bytes_total; /**< sum over all allocations */
  uint64_t freed_bytes_total;     /**< sum over all frees */
  uint64_t allocations;           /**< live blocks */
  uint64_t allocations_peak;      /**< most at one time since the last reset */
  uint64_t allocations_total;     /**< allocations so far */
  uint64_t frees_total;           /**< frees so far */
  uint64_t reserved_bytes;        /**< live and cached blocks */
  uint64_t reserved_bytes_peak;   /**< most at one time since the last reset, as far as was asked */
  uint64_t out_of_memory_errors;  /**< allocations refused for lack of memory */
} vmem_torch_statistics;
/**
 * A snapshot for one device; zeros for a device that was never used.
 * @param device CUDA ordinal, below 64
 * @param[out] out the snapshot
 *
 * Errors: INVALID_VALUE (NULL, or no such device). vmem_last_error says nothing of these.
 */
VMEM_API vmem_status vmem_torch_memory_stats(int device, vmem_torch_statistics* out);
/**
 * Sets the peaks to what is live now.
 * @param device CUDA ordinal; others are ignored
 */
VMEM_API void vmem_torch_reset_peak_stats(int device);

#ifdef __cplusplus
}
#endif
#endif
