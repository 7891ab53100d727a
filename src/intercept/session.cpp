// The runtime under a program that does not know of vmem: started by the first allocation, stopped
// before the process ends.
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <optional>

#include "base/log.hpp"
#include "base/metrics.hpp"
#include "base/process.hpp"
#include "base/run_board.hpp"
#include "base/sizes.hpp"
#include "intercept/crash.hpp"
#include "intercept/hook.hpp"
#include "runtime/options/options.hpp"
#include "vmem/vmem.h"

namespace vmem::intercept {
namespace {

std::atomic<bool> ending{false};
std::mutex starting;
bool refused = false;  // a start failed, and the failure was reported; guarded by `starting`
// This process's entry on the board of `vmem run`, if there is one.
RunBoard::Entry* run_entry = nullptr;

// Exit codes as those of `vmem run`.
constexpr int kExitBadOptions = 2;
constexpr int kExitFailed = 3;

// First called before atexit(end), so destroyed after it.
std::optional<RunBoard>& run_board() {
  static std::optional<RunBoard> board = RunBoard::of_environment();
  return board;
}

void take_run_entry(RunBoard::State state) {
  std::optional<RunBoard>& board = run_board();
  if (!board) return;
  run_entry = board->claim();
  if (run_entry != nullptr) run_entry->state.store(state, std::memory_order_release);
}

void report_to_run(const vmem_statistics& figures) {
  if (run_entry == nullptr) return;
  run_entry->figures = {
      .launches = figures.acquires,
      .launches_that_waited = figures.acquire_misses,
      .wait_us = figures.acquire_wait_us,
      .in_place_launches = figures.in_place_acquires,
      .hbm_budget_bytes = figures.hbm_budget_bytes,
      .host_budget_bytes = figures.host_budget_bytes,
      .into_hbm_bytes = figures.migrated_in_bytes + figures.read_to_hbm_bytes,
      .out_of_hbm_bytes = figures.migrated_out_bytes,
      .to_disk_and_nodes_bytes = figures.spilled_bytes,
      .from_disk_and_nodes_bytes = figures.recalled_bytes + figures.file_read_bytes,
  };
  run_entry->state.store(RunBoard::State::ended, std::memory_order_release);
}

// Ends the program: without vmem each of its allocations would fail with an error that says
// nothing. Runs no exit handlers, because the calling thread may hold any lock.
[[noreturn]] void end_program(int code, const char* why) {
  take_run_entry(RunBoard::State::refused);
  std::fflush(stdout);
  std::fprintf(stderr, "vmem: cannot start: %s\nvmem: ended the program, because it asked for GPU memory\n", why);
  std::_Exit(code);
}

// atexit handler. Runs before the driver's own exit handler, which was registered earlier.
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
        "fetched ahead {}, of which used {}; {} pages left HBM ({} attempts ended), {} of them dead; {} maps, {} "
        "unmaps, "
        "{} frames made, {} unmade",
        figures.acquires, figures.acquire_misses, double(figures.acquire_wait_us) * 1e-6, figures.acquire_waits,
        figures.in_place_acquires, format_bytes(figures.migrated_in_bytes), format_bytes(figures.migrated_out_bytes),
        format_bytes(figures.dropped_bytes), format_bytes(figures.prefetched_bytes),
        format_bytes(figures.prefetched_used_bytes), figures.evictions, figures.eviction_cancels,
        figures.dead_evictions, figures.maps, figures.unmaps, figures.frames_created, figures.frames_destroyed);
    for (const Metric& metric : metric_table()) VMEM_LOG_DEBUG("{}: {}", metric.name, figures.*metric.value);
    report_to_run(figures);
  }
  runtime->stop();
  runtime->report_call_times();
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
  if (options && options->protect)
    end_program(kExitBadOptions, "the option protect is for programs that say what they write; leave it out here");
  (void)run_board();
  const vmem_status status = vmem_init(nullptr, 0);
  if (status == VMEM_ERROR_FORKED) {  // as without vmem, a program may try it and go on
    refused = true;
    std::fprintf(stderr, "vmem: cannot start: %s\n", vmem_last_error());
    return nullptr;
  }
  if (status != VMEM_OK)
    end_program(status == VMEM_ERROR_INVALID_OPTION ? kExitBadOptions : kExitFailed, vmem_last_error());
  std::atexit(end);
  take_run_entry(RunBoard::State::started);
  report_own_crashes();
  return running();
}

CUresult report(const char* what, const Error& error) {
  static std::array<std::atomic<std::uint32_t>, 32> said{};
  // The program handles out-of-memory errors, which may be frequent.
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

CUresult report_exception() noexcept {
  static std::atomic<std::uint32_t> said{0};
  const bool says = said.fetch_add(1) < 8;
  try {
    throw;
  } catch (const std::bad_alloc&) {
    if (says) log::write_plain("a call was refused: the process is out of memory for vmem's own bookkeeping");
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (const std::exception& unexpected) {
    if (says) log::write_plain(unexpected.what());
    return CUDA_ERROR_UNKNOWN;
  } catch (...) {
    if (says) log::write_plain("a call was refused for an exception of an unknown kind");
    return CUDA_ERROR_UNKNOWN;
  }
}

bool capturing(const runtime::Runtime& runtime, CUstream stream) {
  if (captures().load(std::memory_order_acquire) == 0) [[likely]]
    return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = runtime.driver()->cuStreamIsCapturing(stream, &status);
  return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace vmem::intercept
