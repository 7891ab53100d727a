/**
 * @file
 * vmem: more GPU memory than the GPU has.
 *
 * The C interface, and the only ABI. One reserved range of virtual addresses holds every
 * allocation. Each page of an allocation is in GPU memory (HBM), in pinned host memory or in a
 * slower tier. Pages move between tiers; addresses never change.
 *
 * Contract. Pointers returned by vmem_malloc are device pointers. GPU work may touch them only
 * between vmem_acquire and vmem_release, which name the ranges, the access and the stream:
 *
 *     vmem_range r = {x, bytes, VMEM_READ_WRITE, 0};
 *     vmem_acquire(&r, 1, stream);          // on return, work queued on `stream` may use the range
 *     kernel<<<..., stream>>>(x);           // queue any number of launches and copies
 *     vmem_release(&r, 1, stream);          // everything queued on `stream` so far is the last use
 *
 * Release waits for nothing; acquire waits until its copies are queued, and for queued work only if
 * that holds all of HBM (see vmem_acquire). Pages stay in place until the work queued before the
 * release is done. GPU work outside acquire and release fails with an illegal-address error once
 * its page has moved. A write to a range acquired for reading breaks the contract: vmem finds it
 * when the page leaves HBM, keeps the data and logs a warning. With the option protect=on it is an
 * illegal-address error at once, except in small allocations, which share pages (see vmem_query).
 * The CPU must not dereference these pointers: use vmem_read and vmem_write.
 *
 * Threads. Every function may be called from any thread, but vmem_shutdown only while no other call
 * is running. The thread that acquired a range must release it. The handle 0 and CU_STREAM_LEGACY
 * name the legacy default stream, CU_STREAM_PER_THREAD the calling thread's. A stream passed to
 * vmem must stay valid until vmem_stream_close was called for it: the CUDA driver crashes when
 * asked about a destroyed stream. Streams in capture cannot be used with acquire, release or free.
 *
 * Units. Sizes and offsets are in bytes, times in microseconds (names end in `_us`). Devices are
 * CUDA ordinals. Counters start at 0 with vmem_init and only grow.
 *
 * Errors. Every function returns a status. vmem_last_error() describes the calling thread's last
 * failure: the request, the state found and the remedy. A failed call changes nothing, except that
 * a copy or fill in several pieces may have done some of them. The errors of a function are listed
 * without VMEM_ERROR_. Any function may also fail with NOT_INITIALIZED, DRIVER, DEVICE_LOST, with
 * OUT_OF_MEMORY if the process lacks memory for vmem's bookkeeping, and with INTERNAL for a defect
 * of vmem. After fork, calls in the child return FORKED.
 */
#ifndef VMEM_VMEM_H
#define VMEM_VMEM_H

#include <stddef.h>
#include <stdint.h>

/** Marks a function that the library exports. */
#if defined(__GNUC__)
#define VMEM_API __attribute__((visibility("default")))
#else
#define VMEM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;
/** A CUDA stream: the same type as CUstream and cudaStream_t. Not owned. */
typedef struct CUstream_st* vmem_stream;

/** What became of a call. */
typedef enum vmem_status {
  VMEM_OK = 0,                  /**< done */
  VMEM_ERROR_INVALID_VALUE = 1, /**< an argument is out of its range; the message names it */
  /** unknown, malformed, or contradicts another option or the machine */
  VMEM_ERROR_INVALID_OPTION = 2,
  VMEM_ERROR_NOT_INITIALIZED = 3,     /**< vmem_init has not succeeded, or vmem_shutdown has run */
  VMEM_ERROR_ALREADY_INITIALIZED = 4, /**< vmem_init has succeeded before */
  /** not an allocation's address: foreign, freed, interior or past the end */
  VMEM_ERROR_INVALID_POINTER = 5,
  VMEM_ERROR_INVALID_RANGE = 6, /**< the range leaves its allocation */
  VMEM_ERROR_NOT_ACQUIRED = 7,  /**< the calling thread does not hold this range */
  VMEM_ERROR_IN_USE = 8,        /**< the range is held by an acquire */
  /** every tier is full; the message gives each tier's use and budget */
  VMEM_ERROR_OUT_OF_MEMORY = 9,
  VMEM_ERROR_ADDRESS_SPACE = 10, /**< the reserved address range is used up */
  VMEM_ERROR_LOST = 11,          /**< no valid copy of a page is left */
  VMEM_ERROR_TIMEOUT = 12,       /**< a deadline passed */
  VMEM_ERROR_UNSUPPORTED = 13,   /**< the machine, driver or stream state cannot do this */
  VMEM_ERROR_NO_DRIVER = 14,     /**< no usable CUDA driver */
  /** a driver call failed; the message names the call and its result */
  VMEM_ERROR_DRIVER = 15,
  /** the CUDA context was reset or had a fatal error; only vmem_shutdown is possible */
  VMEM_ERROR_DEVICE_LOST = 16,
  VMEM_ERROR_FORKED = 17,  /**< called in the child of a process that had initialised vmem */
  VMEM_ERROR_INTERNAL = 18 /**< a defect of vmem; the message says what */
} vmem_status;

/**
 * The name of a status in words, such as "out of memory". Never NULL; static, so valid for ever.
 * @param status any value; "unknown status" if it is none of vmem_status
 */
VMEM_API const char* vmem_status_string(vmem_status status);
/**
 * The calling thread's last failure, as a sentence; "" if none. Valid until the thread's next vmem
 * call.
 */
VMEM_API const char* vmem_last_error(void);
/**
 * The library's version, "MAJOR.MINOR.PATCH". Static, so valid for ever.
 */
VMEM_API const char* vmem_version(void);

/* ---- start and end --------------------------------------------------------------------------- */

/** An option of the runtime, for vmem_init; `vmem options` lists all. */
typedef struct vmem_option {
  const char* name;  /**< as in `vmem options`, e.g. "hbm" */
  const char* value; /**< e.g. "16GiB" */
} vmem_option;

/**
 * Starts the runtime for this process: loads the CUDA driver, retains the primary contexts of the
 * devices in use, reserves the address range and starts the mover thread. Options not named here
 * are taken from the environment (VMEM_HBM for "hbm"), then from their defaults.
 * @param options `count` options; may be NULL when count is 0. Not kept.
 * @param count number of options
 *
 * Errors: INVALID_VALUE (NULL options, name or value), INVALID_OPTION, NO_DRIVER, UNSUPPORTED (no
 * virtual memory management), ADDRESS_SPACE, ALREADY_INITIALIZED, TIMEOUT (the file system of an
 * nvme directory does not answer).
 */
VMEM_API vmem_status vmem_init(const vmem_option* options, size_t count);
/**
 * Waits for the work queued before the call, releases all resources and ends the runtime.
 * Allocations still live are freed. No other call may run meanwhile.
 *
 * Errors: NOT_INITIALIZED, IN_USE (ranges are still acquired; nothing has ended), FORKED.
 */
VMEM_API vmem_status vmem_shutdown(void);

/* ---- memory ---------------------------------------------------------------------------------- */

/**
 * Allocates virtual GPU memory, aligned to 256 bytes as cudaMalloc's, contents undefined. Backing
 * is committed now, so a later acquire cannot run out of memory. Exception: part of the backing is
 * in files (option nvme) and the ranges in use at one time exceed HBM and host memory.
 *
 * Allocations of up to 1 MiB share pages, and reuse memory freed on the same stream at once, in
 * stream order. Larger allocations reuse freed memory only after the work that used it is complete;
 * if no other memory is left, the call waits for that work, as vmem_acquire waits for a frame.
 * @param[out] out receives the pointer; unchanged on failure
 * @param bytes 1 to the size of the address space (option space)
 * @param device CUDA ordinal, one of the option devices
 * @param stream first use of the memory is in this stream's order
 *
 * Errors: INVALID_VALUE (NULL out, 0 bytes, unknown device), OUT_OF_MEMORY, ADDRESS_SPACE, TIMEOUT
 * (a disk or node made no room within the option call_wait).
 */
VMEM_API vmem_status vmem_malloc(void** out, size_t bytes, int device, vmem_stream stream);
/**
 * Maps a file as read-only GPU memory. Pages are read from the file when they are used or
 * prefetched, through host memory to HBM, by direct I/O if the file system supports it. Pages leave
 * HBM without a copy and take up neither host memory nor room of the option nvme. All functions
 * take the pointer, but acquires for writing, copies to the range, fills and vmem_write are
 * refused. A stray write of a kernel is an illegal-address error. vmem_free ends the mapping and
 * closes the file.
 *
 * The file must not change. After its size or modification time has changed, a page read from it is
 * lost. If only its status-change time has changed, a page is lost whose bytes differ from those
 * read through host memory before (docs/decisions/0040). Calls then fail with LOST; the message
 * names the file and the change. Pages in memory stay readable; map the file anew to read a lost
 * page. If a disk fails to read a page, the call fails with DRIVER, and the next call reads the
 * page again.
 * @param[out] out receives the pointer, `offset` modulo 4096 bytes (a block of direct I/O) behind
 *   the beginning of a page; unchanged on failure
 * @param path the file; not kept
 * @param offset in bytes, any
 * @param bytes 0 for all from `offset` to the end of the file
 * @param device CUDA ordinal, one of the option devices
 *
 * Errors: INVALID_VALUE (NULL, unknown device, or the file cannot be opened, is not a regular file
 * or has nothing from `offset` on), INVALID_RANGE (the range leaves the file), OUT_OF_MEMORY (no
 * room in host memory to stage pages), ADDRESS_SPACE, UNSUPPORTED (io_uring is not available),
 * TIMEOUT (the file system did not answer within the option call_wait).
 */
VMEM_API vmem_status vmem_map_file(void** out, const char* path, uint64_t offset, uint64_t bytes, int device);
/**
 * Frees an allocation, or ends a mapping of a file. Work queued on `stream` before the call, and
 * work covered by releases, may still be running: the memory is reused only after that work. The
 * contents are never written back.
 *
 * Allocations of up to 1 MiB are reused in the order of `stream`. As with cudaFreeAsync, the caller
 * must order work on other streams that still uses one before the free. For these allocations only
 * holds of the calling thread are checked.
 * @param ptr as from vmem_malloc or vmem_map_file; NULL is ignored
 * @param stream the last use that no release covers is in this stream's order
 *
 * Errors: INVALID_POINTER, IN_USE (a thread still holds a range of the allocation; nothing is
 * freed), UNSUPPORTED (the stream is capturing, or belongs to no context that vmem uses).
 */
VMEM_API vmem_status vmem_free(void* ptr, vmem_stream stream);

/** Access, for vmem_range: the range is read. */
#define VMEM_READ 1u
/** Access: the range is written. Bytes not written keep their value. */
#define VMEM_WRITE 2u
/** Access: the range is read and written. */
#define VMEM_READ_WRITE 3u
/**
 * With VMEM_WRITE: every byte of the range will be written before it is read, so vmem need not
 * fetch the old contents. Pages only partly inside the range keep their contents.
 */
#define VMEM_DISCARD 4u

/** What GPU work uses, for vmem_acquire and vmem_release. */
typedef struct vmem_range {
  void* ptr;         /**< anywhere inside an allocation */
  size_t bytes;      /**< at least 1; the range lies in one allocation */
  uint32_t access;   /**< VMEM_READ, VMEM_WRITE, VMEM_READ_WRITE, VMEM_WRITE | VMEM_DISCARD */
  uint32_t reserved; /**< 0 */
} vmem_range;

/**
 * Makes ranges usable by work queued on `stream` after the call: mapped, and up to date in stream
 * order. Pages are brought into HBM as far as its budget allows; the rest is mapped in place in
 * host memory, at the same address. If unfinished work holds all of HBM, the call waits until the
 * GPU has made no progress for the option acquire_wait, then serves in place; for disks and nodes
 * it waits for the option call_wait at most. Holds are counted: acquiring twice needs two releases,
 * by the thread that acquired. If every page is resident, the call takes no lock, makes no system
 * call and allocates nothing.
 *
 * All or nothing: on failure no range is held, but contents covered by VMEM_DISCARD may be gone.
 * @param ranges `count` ranges, which may overlap; not kept
 * @param count up to 1,048,576 (2^20, a bound against sizes passed by mistake)
 * @param stream work queued on it afterwards may use the ranges
 *
 * Errors: INVALID_VALUE, INVALID_POINTER, INVALID_RANGE, LOST, OUT_OF_MEMORY (in-place service is
 * needed and impossible; with files: all of HBM and host memory stays in use), UNSUPPORTED
 * (capturing stream, or one of a context that vmem does not use; more than 65,535 streams or 4,096
 * threads), IN_USE (with protect=on: acquire for writing of a page that stays in use for reading;
 * not for small allocations), TIMEOUT (a disk or node did not bring a page within the option
 * call_wait or remote_wait; the page is kept).
 */
VMEM_API vmem_status vmem_acquire(const vmem_range* ranges, size_t count, vmem_stream stream);
/**
 * Ends holds of the calling thread: all work queued on `stream` so far counts as using the ranges.
 * All or nothing. On CU_STREAM_PER_THREAD each release records an event, because no other thread
 * can: a microsecond or two more than on other streams.
 * @param ranges `count` ranges whose `ptr` and `bytes` equal those of the acquire; access is
 *   ignored
 * @param count as of vmem_acquire; ranges of several acquires may be released together
 * @param stream the one whose queued work is the last use
 *
 * Errors: NOT_ACQUIRED, INVALID_VALUE.
 */
VMEM_API vmem_status vmem_release(const vmem_range* ranges, size_t count, vmem_stream stream);
/**
 * Tells vmem that `stream` will be destroyed or not be used with vmem again. Call it before
 * cuStreamDestroy, while no other thread uses the stream. Does not wait.
 * @param stream ignored if it is unknown to vmem
 *
 * Errors: only those of every function.
 */
VMEM_API vmem_status vmem_stream_close(vmem_stream stream);

/**
 * Hints that a range should be brought into HBM ahead of use, unless that displaces pages needed
 * sooner. Returns at once; lack of space is never an error.
 * @param ptr anywhere inside an allocation
 * @param bytes at least 1; the range lies in one allocation
 *
 * Errors: INVALID_VALUE (0 bytes), INVALID_POINTER, INVALID_RANGE.
 */
VMEM_API vmem_status vmem_prefetch(const void* ptr, size_t bytes);

/** How vmem should treat pages, for vmem_advise. */
typedef enum vmem_advice {
  VMEM_ADVISE_NORMAL = 0, /**< clears all other advice for the pages */
  /** keep the host copy of a page in HBM, so eviction copies nothing */
  VMEM_ADVISE_READ_MOSTLY = 1,
  VMEM_ADVISE_PREFER_HBM = 2,  /**< evict other pages first */
  VMEM_ADVISE_PREFER_HOST = 3, /**< evict these pages first */
  /** bring into HBM and keep there; fails if the budget does not allow it */
  VMEM_ADVISE_PIN = 4,
  VMEM_ADVISE_IN_PLACE = 5, /**< serve acquires in place in host memory, never move to HBM */
  VMEM_ADVISE_EVICT = 6,    /**< evict pages that are not in use now; a one-time request */
  /** not an advice: lets the type hold any value a caller passes */
  VMEM_ADVICE_MAX_ENUM = 0x7fffffff
} vmem_advice;
/**
 * Advice for the pages that the range touches. Advice applies to whole pages, including bytes
 * outside the range, and holds until VMEM_ADVISE_NORMAL or the end of the allocation.
 * @param ptr anywhere inside an allocation
 * @param bytes at least 1; the range lies in one allocation
 * @param advice one of vmem_advice
 *
 * Errors: INVALID_VALUE, INVALID_POINTER, INVALID_RANGE, OUT_OF_MEMORY (PIN beyond the budget),
 * UNSUPPORTED (IN_PLACE without mappable host memory or on an allocation too small to have pages of
 * its own).
 */
VMEM_API vmem_status vmem_advise(const void* ptr, size_t bytes, vmem_advice advice);

/**
 * Copies in stream order; each side is vmem memory or any pointer CUDA accepts. Acquires and
 * releases the pages in pieces, and splits the copy where pages lie in different tiers. Either side
 * may be larger than HBM. Pageable host memory makes the call synchronous, as with cuMemcpyAsync.
 * @param dst first byte written
 * @param src first byte read
 * @param bytes 0 copies nothing
 * @param stream order of the copy
 *
 * Errors: as vmem_acquire; INVALID_VALUE for overlapping ranges.
 */
VMEM_API vmem_status vmem_memcpy(void* dst, const void* src, size_t bytes, vmem_stream stream);
/**
 * Fills a range in stream order, in pieces as vmem_memcpy does.
 * @param ptr anywhere inside an allocation
 * @param value its low 8 bits are written to each byte
 * @param bytes 0 fills nothing; the range lies in one allocation
 * @param stream order of the fill
 *
 * Errors: as vmem_acquire.
 */
VMEM_API vmem_status vmem_memset(void* ptr, int value, size_t bytes, vmem_stream stream);

/**
 * Copies from vmem memory to host memory, without bringing pages into HBM: pages outside HBM stay
 * outside while host memory has room. Waits for the work released on the pages before, and returns
 * when the copy is done. The range may span any number of pages.
 * @param[out] host_dst host memory of `bytes` bytes
 * @param src anywhere inside an allocation
 * @param bytes at least 1; the range lies in one allocation
 *
 * Errors: INVALID_POINTER, INVALID_RANGE, INVALID_VALUE, LOST, OUT_OF_MEMORY, TIMEOUT.
 */
VMEM_API vmem_status vmem_read(void* host_dst, const void* src, size_t bytes);
/**
 * Copies from host memory to vmem memory, as vmem_read does in the other direction.
 * @param dst anywhere inside an allocation
 * @param host_src host memory of `bytes` bytes
 * @param bytes at least 1; the range lies in one allocation
 *
 * Errors: those of vmem_read; IN_USE (pages held by an acquire, or an allocation of up to 1 MiB
 * that the calling thread holds).
 */
VMEM_API vmem_status vmem_write(void* dst, const void* host_src, size_t bytes);

/* ---- what there is --------------------------------------------------------------------------- */

/** Where the pages of an allocation are: sizes in bytes, each page counted in one place. */
typedef struct vmem_pointer_info {
  void* base;               /**< start of the allocation that holds the pointer */
  size_t bytes;             /**< requested size of the allocation */
  size_t page_bytes;        /**< page size of the allocation */
  int device;               /**< CUDA ordinal */
  uint32_t shared_pages;    /**< 1: its pages hold other allocations too */
  size_t bytes_hbm;         /**< bytes of the allocation's pages in HBM */
  size_t bytes_peer;        /**< only in another GPU's HBM, mapped in place or not */
  size_t bytes_host_mapped; /**< mapped in place in host memory */
  size_t bytes_host;        /**< only in host memory, not mapped */
  /** only below host memory: in files (option nvme) or on nodes (option remote) */
  size_t bytes_below_host;
  size_t bytes_file;     /**< only in a mapped file, or at other nodes (vmem_open) */
  size_t bytes_unbacked; /**< never written, so without backing */
  size_t bytes_lost;     /**< no valid copy is left */
} vmem_pointer_info;
/**
 * A snapshot of where an allocation's pages are; other threads may move them at any time.
 * @param ptr anywhere inside an allocation
 * @param[out] info the snapshot
 *
 * Errors: INVALID_POINTER, INVALID_VALUE (NULL info).
 */
VMEM_API vmem_status vmem_query(const void* ptr, vmem_pointer_info* info);

/**
 * Budgets, use and counters since vmem_init, for vmem_stats. Names end in the unit: _bytes, _us
 * (microseconds); others are counts. "Files" are those of the option nvme.
 */
typedef struct vmem_statistics {
  uint32_t struct_bytes;         /**< set by the caller to sizeof(vmem_statistics) */
  int32_t device_count;          /**< devices in use */
  uint32_t emulated;             /**< 1: the emulated driver */
  uint32_t reserved;             /**< 0 */
  uint64_t space_bytes;          /**< address range reserved */
  uint64_t allocated_bytes;      /**< live allocations, as requested */
  uint64_t committed_bytes;      /**< backing committed for live allocations */
  uint64_t hbm_budget_bytes;     /**< of all devices together */
  uint64_t hbm_used_bytes;       /**< of all devices together */
  uint64_t host_budget_bytes;    /**< pinned host memory that may be used */
  uint64_t host_used_bytes;      /**< pinned host memory in use */
  uint64_t peer_budget_bytes;    /**< other GPUs' HBM; 0 if none takes pages */
  uint64_t peer_used_bytes;      /**< other GPUs' HBM in use */
  uint64_t nvme_budget_bytes;    /**< files; 0 without the option nvme */
  uint64_t nvme_used_bytes;      /**< files in use */
  uint64_t remote_budget_bytes;  /**< that other nodes lend, or would */
  uint64_t remote_used_bytes;    /**< pages on other nodes, each counted once */
  uint64_t remote_stored_bytes;  /**< copies sent to other nodes */
  uint64_t remote_fetched_bytes; /**< pages fetched back from other nodes */
  uint64_t remote_copies_lost;   /**< page copies lost with their nodes */
  uint64_t remote_single_copies; /**< pages stored with one copy where two were wanted */
  uint64_t remote_reconnects;    /**< connections re-established */
  /** checksum mismatches on either side; the page was sent again */
  uint64_t remote_checksum_failures;
  uint64_t metadata_bytes;      /**< page table and bookkeeping */
  uint64_t pages;               /**< live pages */
  uint64_t acquires;            /**< calls of vmem_acquire, and those that copies and fills make */
  uint64_t acquire_misses;      /**< acquires that found a page not resident */
  uint64_t in_place_acquires;   /**< acquires served in place in host memory */
  uint64_t acquire_waits;       /**< acquires that waited for GPU work to free HBM */
  uint64_t acquire_wait_us;     /**< total time acquires waited for the mover */
  uint64_t mover_busy_us;       /**< time the mover was busy */
  uint64_t migrated_in_bytes;   /**< host or peer to HBM */
  uint64_t migrated_out_bytes;  /**< HBM to host or peer */
  uint64_t peer_in_bytes;       /**< part of migrated_in_bytes: from other GPUs' HBM */
  uint64_t peer_out_bytes;      /**< part of migrated_out_bytes: to other GPUs' HBM */
  uint64_t peer_returned_bytes; /**< moved to host memory at the other GPU's demand */
  uint64_t dropped_bytes;       /**< evicted without a copy: the host copy was current */
  uint64_t spilled_bytes;       /**< host memory to files and other nodes */
  uint64_t recalled_bytes;      /**< files and other nodes to host memory or HBM */
  /** evicted from host memory without a write: the file's copy was current */
  uint64_t spills_dropped_bytes;
  uint64_t prefetched_bytes;      /**< brought into HBM ahead of use */
  uint64_t prefetched_used_bytes; /**< part of prefetched_bytes: used before they left again */
  uint64_t evictions;             /**< pages evicted from HBM */
  uint64_t eviction_cancels;      /**< evictions that a new use ended */
  uint64_t maps;                  /**< pages mapped */
  uint64_t unmaps;                /**< pages unmapped */
  uint64_t frames_created;        /**< HBM frames made with the driver */
  /** pages written though acquired for reading; found on leaving HBM, and kept */
  uint64_t stray_writes;
  uint64_t file_mapped_bytes;        /**< live file mappings; not in allocated_bytes */
  uint64_t file_read_bytes;          /**< mapped files to host memory or HBM */
  uint64_t nvme_compressed_bytes;    /**< pages compressed for files: size before */
  uint64_t nvme_compressed_to_bytes; /**< pages compressed for files: size after */
  uint64_t nvme_pages_as_is;         /**< pages written to files uncompressed */
  uint64_t nvme_pages_lz4;           /**< pages written to files by lz4 */
  uint64_t nvme_pages_zstd;          /**< pages written to files by zstd */
  uint64_t nvme_pages_shuffled;      /**< pages written to files in byte planes, each compressed */
  uint64_t nvme_compress_us;         /**< time of vmem's threads, trials included */
  uint64_t nvme_decompress_us;       /**< time of vmem's threads */
  uint64_t lent_bytes;               /**< HBM of our GPUs that other processes hold (option lend) */
  /** part of lent_bytes: demanded back and late, or its holder does not respond */
  uint64_t lent_overdue_bytes;
  uint64_t nvme_pages_fill; /**< pages of one repeated word, stored in files as that word */
  /** part of recalled_bytes and file_read_bytes: disk to HBM (option gds) */
  uint64_t read_to_hbm_bytes;
  uint64_t frames_destroyed; /**< HBM frames given back to the driver */
  uint64_t dead_evictions;   /**< part of evictions: pages of freed allocations */
} vmem_statistics;
/**
 * A snapshot of budgets, use and counters. Counters that change meanwhile need not agree.
 * @param[in,out] out the caller sets `struct_bytes`; the call fills in the rest
 *
 * Errors: INVALID_VALUE (NULL, or an unknown struct_bytes).
 */
VMEM_API vmem_status vmem_stats(vmem_statistics* out);

/**
 * Blocks until no move is in flight and the mover is idle. For tests and measurements.
 *
 * Errors: TIMEOUT (transfers did not finish within the option call_wait).
 */
VMEM_API vmem_status vmem_quiesce(void);

#ifdef __cplusplus
}
#endif
#endif
