/**
 * @file
 * Memory that the programs of a cluster share: regions that one of them publishes and others open.
 *
 * For programs with the option cluster. Functions wait for other nodes and for the cluster's
 * registry, not for the GPU. What is said in vmem/vmem.h of threads, units and errors holds here.
 */
#ifndef VMEM_CLUSTER_H
#define VMEM_CLUSTER_H

#include "vmem/vmem.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How a region is published. Zeros: no copies, for ever, 30 seconds, for its own tenant. */
typedef struct vmem_publish_options {
  uint32_t copies;    /**< daemons that are to hold all of it before the call returns; 0 to 8 */
  uint32_t reserved;  /**< 0 */
  uint64_t expires_s; /**< Unix time from which on it is removed; 0: never */
  uint64_t wait_us;   /**< longest wait for the registry and for nodes, in all; 0: 30 seconds */
  /** Other tenants whose programs may open it, with commas between them; "*": all of the cluster.
      NULL: those that prove the publisher's identity only, that of its secret or certificate. */
  const char* readers;
} vmem_publish_options;
/**
 * Publishes an allocation to the nodes of the cluster (option cluster): nobody can write to it any
 * more, and other programs open it by its name, at the same address. Waits for queued work that
 * writes to it.
 *
 * The pages stay where they are. Nodes that open it fetch those that they use, from here or from
 * each other. Unmodified programs may use it like any memory; a kernel that writes to it fails with
 * an illegal-address error. End it by vmem_close; vmem_free refuses it. If no copies were made, and
 * nobody has fetched a page until then, the page is lost.
 *
 * Publishing again under the name makes a new version, and the old one is removed. Who has that
 * open keeps the pages that are there; others of it fail with LOST. As long as the program that has
 * published the name is a member of the cluster, only that program may. Once it has ended, any
 * program of the same tenant may, also while daemons hold the old version.
 * @param ptr as from vmem_malloc, an allocation of more than 1 MiB
 * @param name 1 to 128 letters, digits and "._-/"; begins with a letter or a digit
 * @param options NULL for the defaults; not kept
 *
 * Errors: INVALID_VALUE (NULL, a name that is none, readers that are no tenants, memory that
 * shares pages with other allocations, or of which a page is lost), INVALID_POINTER, IN_USE (it is
 * held or published already, queued work does not end, or another program, which is a member of the
 * cluster still, or of another tenant, has published the name),
 * UNSUPPORTED (no option cluster), TIMEOUT (the registry, or a disk or a node that a page was being
 * read from, did not answer; or fewer copies were made than asked for), LOST (it was removed
 * meanwhile: its time is over, or a newer version came; or a page was lost before another node had
 * a copy of it), NOT_INITIALIZED (this node was removed from the cluster meanwhile). After TIMEOUT
 * for want of copies, which comes at once if no daemon takes any, and LOST, it is published;
 * vmem_close ends that. After all other errors it is writable as before, and vmem_close fails with
 * INVALID_POINTER: it is read-only for no longer than the call takes, also if the registry goes
 * away meanwhile. A record that the registry takes later is removed, and nobody can open it.
 */
VMEM_API vmem_status vmem_publish(void* ptr, const char* name, const vmem_publish_options* options);
/**
 * Opens a region that a program of the cluster has published, read-only, at the address that it has
 * there. Pages come with their first use or by vmem_prefetch, are checked, and stay in this node's
 * HBM and host memory like those of a mapped file. Opening it again, or what this program
 * published, gives the same address; each opening is ended by one vmem_close.
 * @param[out] out receives the pointer; unchanged on failure
 * @param[out] bytes receives the size; may be NULL
 * @param name as it was published
 * @param device CUDA ordinal whose HBM its pages come to, one of the option devices
 * @param wait_us longest wait for the name to be published, and for its nodes to answer
 *
 * Errors: INVALID_VALUE (NULL, a name that is none, unknown device, or a region of another version
 * of vmem), INVALID_OPTION (this program's tenant may not open it, or its home refuses this
 * program's secret or certificate), TIMEOUT (no such name within wait_us, its home or the registry
 * does not answer, or another thread publishes or closes it), LOST (it is being removed), IN_USE
 * (64 nodes take part in it), ADDRESS_SPACE (something else is at its address here), OUT_OF_MEMORY
 * (no room in host memory to stage pages), NOT_INITIALIZED (this node was removed from the cluster,
 * and has not joined again yet), UNSUPPORTED (no option cluster).
 * Work that uses a page of which no node has a copy any more fails with LOST.
 */
VMEM_API vmem_status vmem_open(void** out, uint64_t* bytes, const char* name, int device, uint64_t wait_us);
/**
 * Ends what vmem_open or vmem_publish began. The last one frees the memory here, after the work
 * queued on `stream` and the work covered by releases. What was published lives on where other
 * nodes hold it.
 * @param ptr as from vmem_open, or as given to vmem_publish
 * @param stream as for vmem_free
 * @param wait_us longest wait for other nodes to take over what only this one holds; 0: 30 seconds
 *
 * Errors: INVALID_POINTER (neither), IN_USE (a thread holds a range of it, or another one
 * publishes, opens or closes it: close it again later), TIMEOUT, LOST (it is closed all the same,
 * and pages of it may be lost: the message says which), UNSUPPORTED. LOST comes, too, if this node
 * was removed from the cluster before other nodes had taken over what it kept.
 */
VMEM_API vmem_status vmem_close(void* ptr, vmem_stream stream, uint64_t wait_us);

/** What this program shares, and counters since vmem_init, for vmem_published_stats. */
typedef struct vmem_published_statistics {
  uint32_t struct_bytes;      /**< set by the caller to sizeof(vmem_published_statistics) */
  uint32_t reserved;          /**< 0 */
  uint64_t published_regions; /**< published by this program, and not closed */
  uint64_t opened_regions;    /**< other programs' regions that are open here */
  uint64_t sent_pages;        /**< sent to other nodes */
  uint64_t sent_bytes;        /**< of sent_pages */
  uint64_t same_pages;        /**< not sent: who asked had them, of an earlier version */
  uint64_t refused_requests;  /**< malformed, or of a tenant that may not read the region */
  uint64_t fetched_pages;     /**< came from other nodes */
  uint64_t fetched_bytes;     /**< of fetched_pages */
  uint64_t reused_pages;      /**< taken from an earlier version here instead */
  uint64_t retries;           /**< fetches that were repeated, or asked of another node */
  uint64_t mismatches;        /**< pages that came and were not what was published */
  /** Of host memory, held by pages of opened_regions: copies, and pages in use or on their way. */
  uint64_t cached_bytes;
  uint64_t cache_limit_bytes; /**< option published_cache, at most all of host memory */
  uint64_t dropped_pages;     /**< copies that were released for that limit */
  uint64_t dropped_bytes;     /**< of dropped_pages */
  uint64_t disk_cached_bytes; /**< copies on disks of this program (option nvme) */
  /** Now: option published_cache_disk, at most what this program's own pages leave. */
  uint64_t disk_cache_limit_bytes;
  uint64_t disk_stored_pages; /**< copies that were written to disks */
  uint64_t disk_loaded_pages; /**< loaded from such a copy, instead of fetched */
} vmem_published_statistics;
/**
 * A snapshot. Counters that change meanwhile need not agree.
 * @param[in,out] out the caller sets `struct_bytes`; the call fills in the rest
 *
 * Errors: INVALID_VALUE (NULL, or an unknown struct_bytes), UNSUPPORTED (no option cluster).
 */
VMEM_API vmem_status vmem_published_stats(vmem_published_statistics* out);

#ifdef __cplusplus
}
#endif

#endif
