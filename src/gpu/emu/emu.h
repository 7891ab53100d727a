/*
 * The emulated driver (libvmem_emu.so): the CUDA driver's entry points over host memory, to run and
 * test everything above the driver table on a machine without a GPU. It exports the functions of
 * gpu/driver_table.hpp and gpu/emu/program_functions.hpp under cuda.h's names, with their
 * per-thread variants, cuGetProcAddress, and the functions below.
 *
 * A frame is a range of a memfd. A mapping is mmap(MAP_FIXED) into a reserved PROT_NONE range, so a
 * frame can be mapped at several addresses. Access is mprotect: none, read, read-write. A stream is
 * a worker thread with a queue. A kernel is a registered host function: it runs on its stream's
 * worker and dereferences device addresses directly. A wrong access is a SIGSEGV. Budgets are
 * counted; copies are throttled to the configured link rates. Figures measured on it are labelled
 * emulated.
 */
#ifndef VMEM_EMU_H
#define VMEM_EMU_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Configures the machine: "key=value,key=value". The environment variable VMEM_EMU has the same
 * format and is read first; each call starts from the defaults and VMEM_EMU again. Call it before
 * cuInit, or while nothing of the machine is in use (no active context, allocation, reservation or
 * pinned memory): the machine is then replaced. Keys: devices=1, hbm=8GiB (per device), host=8GiB
 * (limit of HOST_NUMA and pinned memory), numa=1, h2d=0, d2h=0, p2p=0 (GB/s; 0: unthrottled),
 * p2p=I-J:RATE (one pair; 0: no peer access), duplex=0 (GB/s, sum of both directions of one
 * device's host link; 0: no extra limit), nvlink=1 (0: peers copy over their PCIe links at those
 * links' rates), switch=I+J:RATE (devices below one PCIe switch that share its uplink, GB/s per
 * direction; repeatable), near=I:NODE (a device's NUMA node; default: spread evenly), socket=0
 * (GB/s between two NUMA nodes per direction, for HOST_NUMA memory only: pinned memory is near
 * every device), nvml=1 (0: NVML finds no driver), cufile=none|compat|direct (default compat, see
 * below), copy_us=0 (fixed cost of a copy), vmm=1, host_vmm=1 (HOST_NUMA allocations supported),
 * workers=1 (0: see vmem_emu_run), check_host_access=0|1 (default 1 in debug builds, see below),
 * version=13000.
 *
 * check_host_access=1: a host thread that touches device memory outside a kernel gets a SIGSEGV.
 * Each device's kernels have that device's access; without the check, a page accessible to one
 * device is accessible to all. cuMemSetAccess or cuMemUnmap of memory that a running kernel uses
 * ends the process with SIGABRT and a message, because on a GPU the kernel faults, though not every
 * time. If two kernels use a mapping at once, only the first one to touch it is known as its user.
 * The check needs the process's SIGSEGV and SIGBUS handlers. Handlers installed before cuInit are
 * called for faults unrelated to the emulated driver (sanitizers work). Handlers installed later
 * replace the check's and so switch it off.
 *
 * The library is also the machine's NVML (libnvidia-ml.so.1), for links: the functions of
 * gpu/nvml_table.hpp. A pair of peers has as many NVLinks of 25 GB/s as fit in its rate, at least
 * one.
 *
 * It is also the machine's cuFile (libcufile.so.0): the functions of gpu/cufile_table.hpp.
 * cufile=none: its driver does not open. cufile=compat: it opens only if compatibility mode is
 * allowed, as on a machine without nvidia-fs. cufile=direct: as with nvidia-fs, which here cannot
 * read memfd_create files unless compatibility mode is allowed. A read needs device memory that the
 * current context's device may write. It also needs a context and memory known to the driver:
 * stricter than the real library was seen to be in compatibility mode.
 *
 * A wrong access ends the process with a line on stderr and a signal. Copies that crash the real
 * driver end it with SIGABRT. If a copy's memory is unmapped before the copy runs, the error stays
 * in the context until a reset; on a real GPU it lasts as long as the process.
 *
 * Returns 0, or -1 with a sentence in `error` (at most `error_bytes`, zero-terminated).
 */
int vmem_emu_configure(const char* spec, char* error, size_t error_bytes);

/*
 * With workers=0 a stream has no worker thread. Its work runs in the threads that call this
 * function or wait for work (cuStreamSynchronize and the like): a program with one thread always
 * runs its work in the same order. Runs at most `most` pieces of work, of each stream in turn, and
 * returns how many there were. With workers=1 it does nothing and returns 0.
 */
size_t vmem_emu_run(size_t most);

/*
 * Work queued on the stream (a CUstream) from now on waits until *open is not zero. The program
 * keeps the word until that work runs. Returns a CUresult.
 */
int vmem_emu_hold(void* stream, const uint32_t* open);

/*
 * The argument of a kernel's host function: the launch shape and the parameters as cuLaunchKernel
 * received them. The function is called once per launch, for the whole grid, on the stream's worker
 * thread.
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
 * Registers a kernel under `name`; param_bytes[i] is the size of parameter i (the launch copies the
 * parameters). Modules from cuModuleLoadData and libraries from cuLibraryLoadData have all
 * registered kernels, found by name, if their image begins with the 8 bytes "VMEMEMU\0".
 * Registering a name again replaces the kernel. Returns 0, or -1 for a null argument.
 */
int vmem_emu_register_kernel(const char* name, vmem_emu_kernel function, const size_t* param_bytes,
                             unsigned param_count);

#ifdef __cplusplus
}
#endif
#endif
