/*
 * The functions of PyTorch's pluggable allocator (torch.cuda.memory.CUDAPluggableAllocator), in libvmem_preload.so. `vmem.torch`
 * installs them; a program may also do so by itself. Every tensor is an allocation whose pages move between GPU memory and the other
 * tiers, so somebody must see what kernels touch: in a process that was not started with the library (`vmem run`,
 * vmem.torch.enable) they refuse.
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

/*
 * `bytes` on a device, for work on `stream`; 0 bytes give NULL. When every tier is full it throws torch.OutOfMemoryError where the
 * process's libc10 can be asked to, otherwise the error that becomes a Python RuntimeError, with vmem's message; without libc10 it
 * returns NULL. 256-byte aligned.
 */
VMEM_API void* vmem_torch_alloc(ssize_t bytes, int device, vmem_stream stream);
/* In the order of the stream. The block serves the next allocation of its size on that stream. */
VMEM_API void vmem_torch_free(void* ptr, ssize_t bytes, int device, vmem_stream stream);
/* The block is also used on this stream: it is not reused before the work queued there by the time of its free is complete. */
VMEM_API void vmem_torch_record_stream(void* ptr, vmem_stream stream);
/*
 * Whether the blocks that are alive in a private pool (of a CUDA graph) are exactly these `count` ones. The pools themselves come and go
 * by vmem_torch_begin_allocate_to_pool, vmem_torch_end_allocate_to_pool and vmem_torch_release_pool, whose parameters are the C++
 * types of PyTorch's setters of these names.
 */
VMEM_API int vmem_torch_pool_holds(int device, uint64_t id_first, uint64_t id_second, void* const* ptrs, size_t count);
/* Gives cached blocks back (torch.cuda.empty_cache). */
VMEM_API void vmem_torch_empty_cache(void);

/* What torch.cuda.memory_stats asks: bytes and counts of live blocks, per device. Zero for a device that was never used. */
typedef struct vmem_torch_statistics {
  uint64_t allocated_bytes, allocated_bytes_peak, allocated_bytes_total, freed_bytes_total;
  uint64_t allocations, allocations_peak, allocations_total, frees_total;
  uint64_t reserved_bytes, reserved_bytes_peak; /* live and cached */
  uint64_t out_of_memory_errors;
} vmem_torch_statistics;
VMEM_API vmem_status vmem_torch_memory_stats(int device, vmem_torch_statistics* out);
VMEM_API void vmem_torch_reset_peak_stats(int device);

#ifdef __cplusplus
}
#endif
#endif
