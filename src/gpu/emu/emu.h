/*
 * The emulated driver (libvmem_emu.so): the CUDA driver's entry points over host memory, so that everything above the
 * driver seam runs and is tested on a machine without a GPU. It exports the functions of gpu/driver_table.hpp and of
 * gpu/emu/program_functions.hpp under the names that cuda.h gives them, with their per-thread variants, plus
 * cuGetProcAddress, plus the few below, which configure it and register kernels.
 *
 * A frame is a range of a memfd; a mapping is mmap(MAP_FIXED) into a reserved PROT_NONE range, so one frame can be
 * mapped at several addresses; access is mprotect: none, read, read-write. A stream is a worker thread with a queue. A
 * kernel is a registered host function that runs on its stream's worker and dereferences device addresses directly; a
 * wrong access is a SIGSEGV. Budgets are counted, copies are throttled to the links' configured rates. Figures measured
 * on it are labelled emulated.
 */
#ifndef VMEM_EMU_H
#define VMEM_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Configures the machine: "key=value,key=value". The environment variable VMEM_EMU holds the same and is read first;
 * each call starts from the defaults and VMEM_EMU again. Before cuInit, or whenever nothing of the machine is in use
 * (no active context, allocation, reservation or pinned memory): then the machine is replaced. Keys: devices=1,
 * hbm=8GiB (per device), host=8GiB (limit of HOST_NUMA and pinned memory), numa=1, h2d=0, d2h=0, p2p=0 (GB/s; 0:
 * unthrottled), p2p=I-J:RATE (one pair; 0: no peer access), duplex=0 (GB/s in sum of both directions of one device's
 * host link; 0: no extra limit), nvlink=1 (0: peers copy over their PCIe links, at those links' rates), switch=I+J:RATE
 * (devices below one PCIe switch, whose way up they share, GB/s in each direction; may be given several times),
 * near=I:NODE (a device's NUMA node; those not named are spread evenly), socket=0 (GB/s between two NUMA nodes, in each
 * direction, HOST_NUMA memory only: pinned memory is near every device), nvml=1 (0: NVML finds no driver),
 * cufile=none|compat|direct (default compat, see below), copy_us=0 (fixed cost of a copy), vmm=1, host_vmm=1 (HOST_NUMA
 * allocations supported), check_host_access=0|1 (default 1 in debug builds, see below), version=13000.
 *
 * check_host_access=1: a host thread that touches device memory outside a kernel gets a SIGSEGV; each device's kernels
 * get the access of that device (without the check a page is accessible to all as soon as it is to one); and
 * cuMemSetAccess or cuMemUnmap of memory that a running kernel uses ends the process with SIGABRT and a sentence,
 * because on a GPU the kernel faults, though not every time. Two kernels that use a mapping at once are seen as its
 * users only in part: the one that touched it first is. It needs the process's SIGSEGV and SIGBUS handlers: those
 * installed before cuInit are called for faults that are not the emulated driver's (sanitizers' work), those installed
 * later switch the check off by replacing it.
 *
 * It is also the machine's NVML (libnvidia-ml.so.1), as far as links are concerned: the functions that
 * gpu/nvml_table.hpp lists. A pair of peers has as many NVLinks of 25 GB/s as its rate has room for, one at least.
 *
 * And its cuFile (libcufile.so.0), as far as gpu/cufile_table.hpp goes. cufile=none: its driver does not open; compat: only
 * where compatibility mode is allowed, as on a machine without nvidia-fs; direct: as with nvidia-fs, which here has
 * no way to the files of memfd_create unless compatibility mode is allowed. It reads into device memory that the current
 * context's device may write to, and is stricter than the library was seen to be in compatibility mode: a read needs a
 * context, and memory that the driver knows.
 *
 * A wrong access ends the process with a line on stderr and a signal; copies that crash the real driver end it with
 * SIGABRT. Errors of copies whose memory is unmapped before they run are sticky in the context, and a reset ends them;
 * on a real GPU they last as long as the process.
 *
 * Returns 0, or -1 with a sentence in `error` (at most `error_bytes`, zero-terminated).
 */
int vmem_emu_configure(const char* spec, char* error, size_t error_bytes);

/*
 * What a kernel's host function gets: the launch shape and the parameters as cuLaunchKernel received them. It is called
 * once per launch, for the whole grid, on the stream's worker thread.
 */
typedef struct vmem_emu_launch {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void** params; /* params[i] points to a copy of parameter i, alive for the call */
  unsigned param_count;
} vmem_emu_launch;
typedef void (*vmem_emu_kernel)(const vmem_emu_launch* launch);

/*
 * Registers a kernel under `name`; param_bytes[i] is the size of its i-th parameter (the launch copies them). A module
 * loaded by cuModuleLoadData, or a library loaded by cuLibraryLoadData, from an image that begins with the 8 bytes
 * "VMEMEMU\0" has all registered kernels, which are found by name. Registering a name again replaces it. Returns 0, or
 * -1 for a null argument.
 */
int vmem_emu_register_kernel(const char* name, vmem_emu_kernel function, const size_t* param_bytes,
                             unsigned param_count);

#ifdef __cplusplus
}
#endif
#endif
