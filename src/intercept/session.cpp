// The runtime under a program that does not know of it: started with the first allocation, stopped before the process ends.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "base/log.hpp"
#include "base/options.hpp"
#include "base/process.hpp"
#include "base/sizes.hpp"
#include "intercept/crash.hpp"
#include "intercept/hook.hpp"
#include "vmem/vmem.h"

namespace vmem::intercept {
namespace {

std::atomic<bool> ending{false};
std::mutex starting;
bool refused = false;  // starting failed, which has been said; under `starting`

// The driver's own exit handler was registered earlier, when it was loaded, so it runs later.
void end() {
  ending.store(true);
  if (process::forked()) return;
  runtime::Runtime* runtime = runtime::live_runtime();
  if (runtime == nullptr) return;
  vmem_statistics figures{};
  if (runtime->statistics(figures)) {
    VMEM_LOG_INFO(
        "{} launches, {} found something missing and waited {:.1f} s, {} of them for room, {} used host memory in "
        "place; to "
        "HBM {}, back {}, dropped {}; "
        "fetched ahead {}, of which used {}; {} pages left HBM ({} attempts ended)",
        figures.acquires, figures.acquire_misses, double(figures.acquire_wait_us) * 1e-6, figures.acquire_waits,
        figures.in_place_acquires, format_bytes(figures.migrated_in_bytes), format_bytes(figures.migrated_out_bytes),
        format_bytes(figures.dropped_bytes), format_bytes(figures.prefetched_bytes),
        format_bytes(figures.prefetched_used_bytes), figures.evictions, figures.eviction_cancels);
  }
  runtime->stop();
  runtime->tell_call_times();
}

CUresult driver_word(vmem_status status) {
  switch (status) {
    case VMEM_OK:
      return CUDA_SUCCESS;
    case VMEM_ERROR_OUT_OF_MEMORY:
    case VMEM_ERROR_ADDRESS_SPACE:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case VMEM_ERROR_UNSUPPORTED:
      return CUDA_ERROR_NOT_SUPPORTED;
    case VMEM_ERROR_DEVICE_LOST:
      return CUDA_ERROR_LAUNCH_FAILED;
    case VMEM_ERROR_INVALID_VALUE:
    case VMEM_ERROR_INVALID_POINTER:
    case VMEM_ERROR_INVALID_RANGE:
    case VMEM_ERROR_IN_USE:
      return CUDA_ERROR_INVALID_VALUE;
    case VMEM_ERROR_FORKED:
      return CUDA_ERROR_NOT_INITIALIZED;
    default:
      return CUDA_ERROR_UNKNOWN;
  }
}

}  // namespace

std::atomic<std::uint32_t>& captures() {
  static constinit std::atomic<std::uint32_t> under_way{0};
  return under_way;
}

runtime::Runtime* running() {
  runtime::Runtime* runtime = runtime::live_runtime();
  return runtime == nullptr || ending.load(std::memory_order_relaxed) || process::forked() ? nullptr : runtime;
}

runtime::Runtime* started(CUresult& why) {
  if (runtime::Runtime* runtime = running()) return runtime;
  why = CUDA_ERROR_DEINITIALIZED;
  if (ending.load()) return nullptr;
  const std::lock_guard lock(starting);
  if (runtime::Runtime* runtime = running()) return runtime;
  take_over();
  why = CUDA_ERROR_NOT_INITIALIZED;
  if (refused) return nullptr;
  if (!preloaded()) {
    refused = true;
    std::fputs(
        "vmem: cannot start: libvmem_preload.so was loaded too late to see what the program does; use `vmem run`\n",
        stderr);
    return nullptr;
  }
  const auto options = resolve_options({});
  if (options && options->protect) {
    refused = true;
    std::fputs("vmem: cannot start: the option protect is for programs that say what they write; leave it out here\n",
               stderr);
    return nullptr;
  }
  const vmem_status status = vmem_init(nullptr, 0);
  if (status != VMEM_OK) {
    refused = true;
    std::fprintf(stderr, "vmem: cannot start: %s\n", vmem_last_error());
    return nullptr;
  }
  report_own_crashes();
  std::atexit(end);
  return running();
}

CUresult report(const char* what, const Error& error) {
  static std::array<std::atomic<std::uint32_t>, 32> said{};
  // Running out of memory is the program's to handle, and may happen often.
  const bool expected = error.status == VMEM_ERROR_OUT_OF_MEMORY;
  if (said[std::size_t(error.status) % said.size()].fetch_add(1) < 8) {
    if (expected) {
      VMEM_LOG_WARN("{}: {}", what, error.message);
    } else {
      VMEM_LOG_ERROR("{}: {}", what, error.message);
    }
  }
  const bool of_driver = error.status == VMEM_ERROR_DRIVER || error.status == VMEM_ERROR_DEVICE_LOST;
  return of_driver && error.native != 0 ? CUresult(error.native) : driver_word(error.status);
}

bool capturing(const runtime::Runtime& runtime, CUstream stream) {
  if (captures().load(std::memory_order_acquire) == 0) [[likely]]
    return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = runtime.driver()->cuStreamIsCapturing(stream, &status);
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace vmem::intercept
