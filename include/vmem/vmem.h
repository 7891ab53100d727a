/*
 * vmem: more GPU memory than the GPU has.
 *
 * The C interface, and the only ABI. One reserved range of virtual addresses holds every allocation. A page of it is
 * kept in GPU memory (HBM), in pinned host memory, or in a slower tier, and moves between them while its address stays.
 *
 * Contract. Pointers returned by vmem_malloc are device pointers. GPU work may touch them only between vmem_acquire and
 * vmem_release, which name the ranges, the access and the stream:
 *
 *     vmem_range r = {x, bytes, VMEM_READ_WRITE};
 *     vmem_acquire(&r, 1, stream);          // on return, work queued on `stream` may use the range
 *     kernel<<<..., stream>>>(x);           // queue any number of launches and copies
 *     vmem_release(&r, 1, stream);          // everything queued on `stream` so far is the last use
 *
 * Neither call waits for the GPU to finish; pages stay where they are until the work queued before the release is done.
 * Work outside acquire and release ends in an illegal-address error of the GPU once its page has moved. A write to a range
 * acquired for reading breaks the contract: it is found when the page leaves HBM, kept, and warned of; the option protect=on
 * makes it an illegal-address error at once, but for small allocations, which share pages (see vmem_query). The CPU must
 * not dereference these pointers: use vmem_read and vmem_write.
 *
 * Threads. Every function may be called from any thread, vmem_shutdown while no other call is running; a range is released
 * by the thread that acquired it. The handle 0 and CU_STREAM_LEGACY name the legacy default stream, CU_STREAM_PER_THREAD the
 * calling thread's. A stream passed to vmem must stay valid until vmem_stream_close was called for it: the CUDA driver crashes
 * when asked about a destroyed stream. Streams in capture cannot be used with acquire, release or free.
 *
 * Errors. Every function returns a status; vmem_last_error() gives the calling thread's last failure in words: what was
 * asked, what there was, and what to do. A failed call changes nothing, except that a copy or fill in several pieces may have
 * done some of them. Any function may fail with DRIVER or DEVICE_LOST. After fork, the child gets VMEM_ERROR_FORKED.
 */
#ifndef VMEM_VMEM_H
#define VMEM_VMEM_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define VMEM_API __attribute__((visibility("default")))
#else
#define VMEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The same type as CUstream and cudaStream_t. */
struct CUstream_st;
typedef struct CUstream_st* vmem_stream;

typedef enum vmem_status {
  VMEM_OK = 0,
  VMEM_ERROR_INVALID_VALUE = 1,   /* an argument is out of its range; the message names it */
  VMEM_ERROR_INVALID_OPTION = 2,  /* an option is unknown, malformed, or contradicts another or the machine */
  VMEM_ERROR_NOT_INITIALIZED = 3, /* vmem_init has not succeeded, or vmem_shutdown has run */
  VMEM_ERROR_ALREADY_INITIALIZED = 4,
  VMEM_ERROR_INVALID_POINTER = 5, /* not an allocation's address: foreign, freed, interior or past the end */
  VMEM_ERROR_INVALID_RANGE = 6,   /* the range leaves its allocation */
  VMEM_ERROR_NOT_ACQUIRED = 7,    /* the calling thread does not hold this range */
  VMEM_ERROR_IN_USE = 8,          /* the range is held by an acquire */
  VMEM_ERROR_OUT_OF_MEMORY = 9,   /* every tier is full; the message gives each tier's use and budget */
  VMEM_ERROR_ADDRESS_SPACE = 10,  /* the reserved address range is used up */
  VMEM_ERROR_LOST = 11,           /* no valid copy of a page is left */
  VMEM_ERROR_TIMEOUT = 12,        /* a deadline passed */
  VMEM_ERROR_UNSUPPORTED = 13,    /* the machine, driver or stream state cannot do this */
  VMEM_ERROR_NO_DRIVER = 14,      /* no usable CUDA driver */
  VMEM_ERROR_DRIVER = 15,         /* the driver failed a call; the message names the call and its result */
  VMEM_ERROR_DEVICE_LOST = 16,    /* the CUDA context was reset or had a fatal error; only vmem_shutdown is possible */
  VMEM_ERROR_FORKED = 17,         /* called in the child of a process that had initialised vmem */
  VMEM_ERROR_INTERNAL = 18
} vmem_status;

/* A static string for a status; never NULL. */
VMEM_API const char* vmem_status_string(vmem_status status);
/* The calling thread's last failure, as a sentence; "" if none. Valid until the thread's next vmem call. */
VMEM_API const char* vmem_last_error(void);
/* "MAJOR.MINOR.PATCH" of the library. */
VMEM_API const char* vmem_version(void);

/* ---- start and end ------------------------------------------------------------------------------------------- */

typedef struct vmem_option {
  const char* name;  /* as in `vmem options`, e.g. "hbm" */
  const char* value; /* e.g. "16GiB" */
} vmem_option;

/*
 * Starts the runtime for this process: loads the CUDA driver, retains the primary contexts of the devices in use, reserves
 * the address range and starts the mover thread. Options not named here are taken from the environment (VMEM_HBM for
 * "hbm"), then from their defaults.
 *   options: `count` options, may be NULL when count is 0
 * Errors: INVALID_OPTION, NO_DRIVER, UNSUPPORTED (no virtual memory management), ADDRESS_SPACE, ALREADY_INITIALIZED,
 * TIMEOUT (a directory of nvme whose file system does not answer).
 */
VMEM_API vmem_status vmem_init(const vmem_option* options, size_t count);
/*
 * Waits for the work queued before it, gives everything back and ends the runtime. Allocations still live are freed.
 * Errors: NOT_INITIALIZED, IN_USE (ranges are still acquired), FORKED.
 */
VMEM_API vmem_status vmem_shutdown(void);

/* ---- memory -------------------------------------------------------------------------------------------------- */

/*
 * Allocates `bytes` bytes of virtual GPU memory of `device` (CUDA ordinal), aligned to 256 bytes, contents undefined.
 * Backing is committed now: a later acquire cannot run out of memory, unless part of that is in files (the option nvme) and what is in
 * use at one time is more than HBM and host memory hold. Up to 1 MiB, memory freed on the same stream is reused at
 * once, in stream order. Other memory is reused when the work that used it is complete; where that is all there is, the call
 * waits for it, as vmem_acquire waits for a frame.
 *   out: where the pointer goes; unchanged on failure
 *   bytes: 1 to the size of the address space
 * Errors: INVALID_VALUE (NULL out, 0 bytes, unknown device), OUT_OF_MEMORY, ADDRESS_SPACE.
 */
VMEM_API vmem_status vmem_malloc(void** out, size_t bytes, int device, vmem_stream stream);
/*
 * Maps `bytes` bytes of the file at `path`, from `offset`, as read-only GPU memory of `device` (CUDA ordinal). Pages are read from
 * the file when they are used or prefetched, by direct I/O where the file system has it, through host memory to HBM; they
 * leave HBM without a copy, and take up neither host memory nor room of the option nvme. All functions take the pointer, except
 * that nothing can be written: acquires for writing, copies to it, fills and vmem_write are refused, and a stray write of a kernel is
 * an illegal-address error. vmem_free ends the mapping and closes the file.
 * The file must stay as it is. A page that is read after its size or its time of change became another is lost, and so is one whose
 * bytes differ from those that came through host memory before, where its status alone has changed (LOST: the message
 * names the file and what became of it). Pages that are in memory stay readable; map the file
 * anew to read such a page. Where a disk fails to read a page, the call fails with DRIVER, and the next call reads the page again.
 *   out: where the pointer goes, `offset` modulo 4096 behind a page's beginning; unchanged on failure
 *   offset: in bytes, any
 *   bytes: 0 for all from `offset` to the end of the file
 * Errors: INVALID_VALUE (NULL, unknown device, the file cannot be opened, is no regular file, or has nothing from `offset` on),
 * INVALID_RANGE (the range leaves the file), OUT_OF_MEMORY (host memory has no room for pages to come through),
 * ADDRESS_SPACE, UNSUPPORTED (io_uring is not to be had), TIMEOUT (its file system did not answer for the time of the option
 * call_wait).
 */
VMEM_API vmem_status vmem_map_file(void** out, const char* path, uint64_t offset, uint64_t bytes, int device);
/*
 * Frees an allocation, or ends a mapping of a file. Work queued on `stream` before the call, and work covered by releases, may still be running: the
 * memory is reused only after it. Its contents are never written back. NULL is ignored.
 * Allocations of up to 1 MiB are reused in the order of `stream`: work on other streams that still uses one must be ordered
 * before the free by the caller, as with cudaFreeAsync; and of their holds only the calling thread's are looked at.
 * Errors: INVALID_POINTER, IN_USE (a thread still holds a range of it; nothing is freed), UNSUPPORTED (the stream is
 * capturing, or not of a context that vmem uses).
 */
VMEM_API vmem_status vmem_free(void* ptr, vmem_stream stream);

/* Access, for vmem_range. VMEM_WRITE implies that bytes not written keep their value. */
#define VMEM_READ 1u
#define VMEM_WRITE 2u
#define VMEM_READ_WRITE 3u
/* With VMEM_WRITE: every byte of the range will be written before it is read, so its old contents need not be fetched.
 * Pages only partly inside the range keep their contents. */
#define VMEM_DISCARD 4u

typedef struct vmem_range {
  void* ptr;         /* anywhere inside an allocation */
  size_t bytes;      /* at least 1; the range lies in one allocation */
  uint32_t access;   /* VMEM_READ, VMEM_WRITE, VMEM_READ_WRITE, VMEM_WRITE | VMEM_DISCARD */
  uint32_t reserved; /* 0 */
} vmem_range;

/*
 * Makes ranges usable by work queued on `stream` after the call: mapped, and up to date in stream order. Pages are
 * brought into HBM as far as its budget allows; the rest is mapped in place in host memory, at the same address. If no
 * HBM can be had because unfinished work holds all of it, waits until the GPU made no progress for the option
 * "acquire_wait", then serves in place. Holds are counted: acquiring twice needs two releases. `count`: up to 1,048,576.
 * All or nothing: on failure no range is held; contents that VMEM_DISCARD gave up may be gone all the same.
 * Errors: INVALID_VALUE, INVALID_POINTER, INVALID_RANGE, LOST, OUT_OF_MEMORY (in-place service needed and impossible; with files:
 * all of HBM and host memory stays in use),
 * UNSUPPORTED (capturing stream), IN_USE (with protect=on: for writing, of a page that stays in use for reading; not of
 * small allocations), DEVICE_LOST.
 */
VMEM_API vmem_status vmem_acquire(const vmem_range* ranges, size_t count, vmem_stream stream);
/*
 * Ends holds of the calling thread: all work queued on `stream` so far counts as using the ranges. `ptr` and `bytes` equal
 * those of the acquire; access is ignored. All or nothing. On CU_STREAM_PER_THREAD each release records an event, because no
 * other thread can: a microsecond or two more than on other streams.
 * Errors: NOT_ACQUIRED, INVALID_VALUE.
 */
VMEM_API vmem_status vmem_release(const vmem_range* ranges, size_t count, vmem_stream stream);
/*
 * Tells vmem that `stream` will be destroyed or not be used with vmem again. Call it before cuStreamDestroy, when no other
 * thread is using it. Does not wait. A stream vmem has not seen is ignored.
 */
VMEM_API vmem_status vmem_stream_close(vmem_stream stream);

/*
 * Asks for a range to be brought into HBM ahead of need, as far as that costs nothing that is needed sooner. Returns at
 * once; a hint, never an error for lack of space.
 * Errors: INVALID_POINTER, INVALID_RANGE.
 */
VMEM_API vmem_status vmem_prefetch(const void* ptr, size_t bytes);

typedef enum vmem_advice {
  VMEM_ADVISE_NORMAL = 0,           /* takes back the other advice for the pages */
  VMEM_ADVISE_READ_MOSTLY = 1,      /* keep the host copy while the page is in HBM: eviction then costs no copy */
  VMEM_ADVISE_PREFER_HBM = 2,       /* evict other pages first */
  VMEM_ADVISE_PREFER_HOST = 3,      /* evict these pages first */
  VMEM_ADVISE_PIN = 4,              /* bring into HBM and keep there; fails if the budget does not allow it */
  VMEM_ADVISE_IN_PLACE = 5,         /* serve acquires in place in host memory, never move to HBM */
  VMEM_ADVISE_EVICT = 6,            /* move out of HBM now what is not in use, and leave the rest; a one-time request */
  VMEM_ADVICE_MAX_ENUM = 0x7fffffff /* gives the type room for any value that a caller may pass; no advice */
} vmem_advice;
/*
 * Advice for the pages that the range touches; pages are whole, so a page's other bytes are affected too.
 * Errors: INVALID_VALUE, INVALID_POINTER, INVALID_RANGE, OUT_OF_MEMORY (PIN beyond the budget), UNSUPPORTED (IN_PLACE
 * without mappable host memory or on an allocation too small to have pages of its own).
 */
VMEM_API vmem_status vmem_advise(const void* ptr, size_t bytes, vmem_advice advice);

/*
 * Copies `bytes` bytes in stream order; each side is vmem memory or any pointer CUDA accepts. Acquires and releases what it
 * touches, in pieces, and splits the copy where pages lie in different tiers. Either side may be larger than HBM.
 * Pageable host memory makes the call synchronous, as with cuMemcpyAsync.
 * Errors: as vmem_acquire; INVALID_VALUE for overlapping ranges.
 */
VMEM_API vmem_status vmem_memcpy(void* dst, const void* src, size_t bytes, vmem_stream stream);
/* Sets `bytes` bytes to `value` (its low 8 bits), in stream order. Errors: as vmem_acquire. */
VMEM_API vmem_status vmem_memset(void* ptr, int value, size_t bytes, vmem_stream stream);

/*
 * Copy between host memory and vmem memory where it lies: what is outside HBM stays there while host memory has room. Wait for
 * the work that was released on the pages before, and return when the copy is done. The range may span any number of pages.
 * Errors: INVALID_POINTER, INVALID_RANGE, INVALID_VALUE, IN_USE (vmem_write on pages held by an acquire, or on an allocation
 * of up to 1 MiB that the calling thread holds), LOST, OUT_OF_MEMORY.
 */
VMEM_API vmem_status vmem_read(void* host_dst, const void* src, size_t bytes);
VMEM_API vmem_status vmem_write(void* dst, const void* host_src, size_t bytes);

/* ---- what there is ------------------------------------------------------------------------------------------- */

typedef struct vmem_pointer_info {
  void* base;               /* start of the allocation that holds the pointer */
  size_t bytes;             /* its size as asked for */
  size_t page_bytes;        /* its page size */
  int device;               /* CUDA ordinal */
  uint32_t shared_pages;    /* 1: a small allocation, whose pages hold others too */
  size_t bytes_hbm;         /* of its pages: bytes in HBM, */
  size_t bytes_peer;        /* only in another GPU's HBM, mapped in place or not, */
  size_t bytes_host_mapped; /* mapped in place in host memory, */
  size_t bytes_host;        /* only in host memory, not mapped, */
  size_t bytes_nvme;        /* only below host memory: in files of the option nvme, on nodes of the option remote, */
  size_t bytes_file;        /* only in the file that vmem_map_file mapped, */
  size_t bytes_unbacked;    /* never written, so nowhere, */
  size_t bytes_lost;        /* without a copy */
} vmem_pointer_info;
/* Errors: INVALID_POINTER, INVALID_VALUE. Figures are a snapshot. */
VMEM_API vmem_status vmem_query(const void* ptr, vmem_pointer_info* info);

typedef struct vmem_statistics {
  uint32_t struct_bytes; /* set by the caller to sizeof(vmem_statistics) */
  int32_t device_count;  /* devices in use */
  uint32_t emulated;     /* 1: the emulated driver */
  uint32_t reserved;
  uint64_t space_bytes;                      /* address range reserved */
  uint64_t allocated_bytes;                  /* live allocations, as asked for */
  uint64_t committed_bytes;                  /* backing committed for them */
  uint64_t hbm_budget_bytes, hbm_used_bytes; /* sums over devices */
  uint64_t host_budget_bytes, host_used_bytes;
  uint64_t peer_budget_bytes, peer_used_bytes;        /* other GPUs' HBM; 0 without the option peers */
  uint64_t nvme_budget_bytes, nvme_used_bytes;        /* 0 without the option nvme */
  uint64_t remote_budget_bytes, remote_used_bytes;    /* 0 without the option remote; of pages, however many copies */
  uint64_t remote_stored_bytes, remote_fetched_bytes; /* copies sent to other nodes, pages brought back */
  uint64_t remote_copies_lost;                        /* copies of pages that went with their nodes */
  uint64_t remote_single_copies;                      /* pages stored with one copy where two were asked for */
  uint64_t remote_reconnects;                         /* connections that were made again */
  uint64_t remote_checksum_failures;                  /* pages that arrived wrong, there or here, and were sent again */
  uint64_t metadata_bytes;                            /* page table and its bookkeeping */
  uint64_t pages;                                     /* live pages */
  uint64_t acquires, acquire_misses, in_place_acquires, acquire_waits;
  uint64_t acquire_wait_us;                       /* how long acquires waited for the mover, in sum */
  uint64_t mover_busy_us;                         /* how long the mover was at work */
  uint64_t migrated_in_bytes, migrated_out_bytes; /* host or peer to HBM, HBM to host or peer */
  uint64_t peer_in_bytes, peer_out_bytes;         /* of these, from and to other GPUs' HBM */
  uint64_t peer_returned_bytes;           /* moved to host memory because the other GPU wanted its memory back */
  uint64_t dropped_bytes;                 /* evicted without a copy, because the host copy was current */
  uint64_t spilled_bytes, recalled_bytes; /* host to files and other nodes, and back */
  uint64_t spills_dropped_bytes; /* given up in host memory without writing, because the file's copy was current */
  uint64_t prefetched_bytes, prefetched_used_bytes;
  uint64_t evictions, eviction_cancels, maps, unmaps, frames_created;
  uint64_t stray_writes;      /* pages written though acquired for reading: found when they left HBM, and kept */
  uint64_t file_mapped_bytes; /* live mappings of files, as asked for; not among allocated_bytes */
  uint64_t file_read_bytes;   /* mapped files to host memory or HBM */
  uint64_t nvme_compressed_bytes, nvme_compressed_to_bytes; /* of pages compressed for files: before and after */
  uint64_t nvme_pages_as_is, nvme_pages_lz4, nvme_pages_zstd,
      nvme_pages_shuffled;                       /* written to files, by what was done to them; */
                                                 /* shuffled: in byte planes, each compressed */
  uint64_t nvme_compress_us, nvme_decompress_us; /* time of threads beside yours, trials included */
  uint64_t lent_bytes,
      lent_overdue_bytes;     /* of our GPUs' HBM, held by other processes (option lend); of these, wanted */
                              /* back and not given in time, or held by one that talks no more */
  uint64_t nvme_pages_fill;   /* written to files as the one word that all of theirs are */
  uint64_t read_to_hbm_bytes; /* of recalled_bytes and file_read_bytes: straight from files to HBM (option gds) */
} vmem_statistics;
/* Errors: INVALID_VALUE (NULL, or an unknown struct_bytes). */
VMEM_API vmem_status vmem_stats(vmem_statistics* out);

/* Blocks until every move under way is complete and the mover is idle. For tests and measurements. */
VMEM_API vmem_status vmem_quiesce(void);

#ifdef __cplusplus
}
#endif
#endif
