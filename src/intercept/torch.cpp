#include "vmem/torch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "gpu/handles.hpp"
#include "intercept/hook.hpp"
#include "intercept/torch_error.hpp"
#include "intercept/torch_pools.hpp"

namespace vmem::intercept {
namespace {

constexpr int kMaxDevices = 64;

struct alignas(64) Counters {
  std::mutex mutex;
  vmem_torch_statistics figures{};
};
constinit std::array<Counters, kMaxDevices> counters_by_device;
Counters& counters_of(int device) { return counters_by_device[std::size_t(device)]; }

// PyTorch's streams belong to the primary context. Querying the driver for the current context
// costs more than the rest of an allocation.
runtime::StreamId identify(const runtime::Runtime& runtime, int device, vmem_stream stream) {
  return runtime::identify(stream, reinterpret_cast<std::uintptr_t>(runtime.devices().context_of(device)));
}

bool known_device(int device) { return device >= 0 && device < kMaxDevices; }

void count_allocation(int device, std::uint64_t bytes) {
  Counters& counters = counters_of(device);
  const std::lock_guard lock(counters.mutex);
  auto& f = counters.figures;
  f.allocated_bytes += bytes;
  f.allocated_bytes_total += bytes;
  f.allocated_bytes_peak = std::max(f.allocated_bytes_peak, f.allocated_bytes);
  ++f.allocations;
  ++f.allocations_total;
  f.allocations_peak = std::max(f.allocations_peak, f.allocations);
}

void count_free(int device, std::uint64_t bytes) {
  Counters& counters = counters_of(device);
  const std::lock_guard lock(counters.mutex);
  auto& f = counters.figures;
  f.allocated_bytes -= bytes;
  f.freed_bytes_total += bytes;
  --f.allocations;
  ++f.frees_total;
}

// The message is valid until the thread's next failure.
TorchAllocation failed(std::string why, bool full) {
  thread_local std::string problem;
  problem = std::move(why);
  return {nullptr, problem.c_str(), full};
}

TorchAllocation try_to_allocate(std::size_t bytes, int device, vmem_stream stream) {
  CUresult why = CUDA_SUCCESS;
  runtime::Runtime* runtime = known_device(device) ? started(why) : nullptr;
  if (runtime == nullptr) {
    return failed(fmt::format("vmem cannot allocate {} bytes on device {}: {}", bytes, device,
                              known_device(device) ? "it could not be started" : "there is no such device"),
                  false);
  }
  auto pooled = torch_pools().allocate(*runtime, bytes, device, stream);
  auto pointer =
      pooled ? std::move(*pooled) : runtime->blocks().allocate(bytes, device, identify(*runtime, device, stream));
  if (pointer) {
    count_allocation(device, bytes);
    return {*pointer, nullptr, false};
  }
  const Error& error = pointer.error();
  const bool full = error.status == VMEM_ERROR_OUT_OF_MEMORY || error.status == VMEM_ERROR_ADDRESS_SPACE;
  if (full) {
    Counters& counters = counters_of(device);
    const std::lock_guard lock(counters.mutex);
    ++counters.figures.out_of_memory_errors;
  }
  return failed(fmt::format("{}{}", full ? "CUDA out of memory (vmem): " : "vmem: ", error.message), full);
}

}  // namespace

TorchAllocation allocate_for_torch(ssize_t bytes, int device, vmem_stream stream) noexcept {
  if (bytes <= 0) return {};
  const OfVmem mark;
  TorchAllocation made;
  const CUresult result = refused_if_it_throws([&] {
    made = try_to_allocate(std::size_t(bytes), device, stream);
    return CUDA_SUCCESS;
  });
  if (result == CUDA_SUCCESS) return made;
  return {nullptr, "vmem: the allocation failed for lack of host memory, or by an error that was logged",
          result == CUDA_ERROR_OUT_OF_MEMORY};
}

}  // namespace vmem::intercept

using namespace vmem::intercept;
using vmem::OfVmem;

namespace {
using vmem::Status;
using vmem::runtime::Runtime;

// Memory was lacking to note that a stream uses an allocation: from then on every free waits for
// all work of all devices.
constinit std::atomic<bool> forgot_streams{false};

Status synchronize_all(const Runtime& runtime) {
  const vmem::gpu::RelaxedCapture relaxed(runtime.driver());
  for (const auto& device : runtime.devices()) {
    if (auto waited = runtime.devices().synchronize(device->ordinal); !waited) return waited;
  }
  return {};
}

// c10::MempoolId_t, as in PyTorch's setters.
using PoolId = std::pair<std::uint64_t, std::uint64_t>;

// Logs an exception instead of throwing it.
template <class Work>
void without_exceptions(Work&& work) {
  (void)refused_if_it_throws([&] {
    work();
    return CUDA_SUCCESS;
  });
}

// Does nothing if vmem does not run, or runs no more.
template <class Work>
void with_runtime(Work&& work) {
  const OfVmem mark;
  if (Runtime* const runtime = running()) without_exceptions([&] { work(*runtime); });
}

}  // namespace

extern "C" {

void vmem_torch_free(void* ptr, ssize_t bytes, int device, vmem_stream stream) {
  if (ptr == nullptr) return;
  with_runtime([&](Runtime& runtime) {
    if (known_device(device)) count_free(device, std::uint64_t(bytes));
    if (torch_pools().free(ptr, stream)) return;
    if (forgot_streams.load(std::memory_order_acquire)) {
      if (auto waited = synchronize_all(runtime); !waited) {
        (void)report("a free, whose memory stays allocated", waited.error());
        return;
      }
    }
    auto freed = known_device(device) ? runtime.blocks().free(ptr, std::optional(identify(runtime, device, stream)))
                                      : runtime.blocks().free(ptr, std::optional(stream));
    if (!freed) (void)report("a free", freed.error());
  });
}

void vmem_torch_record_stream(void* ptr, vmem_stream stream) {
  if (ptr == nullptr) return;
  with_runtime([&](Runtime& runtime) {
    torch_pools().record_stream(ptr);
    Status done;
    if (!vmem::ran_within_memory([&] { done = runtime.blocks().record_stream(ptr, stream); })) {
      if (!forgot_streams.exchange(true))
        vmem::log::write_plain(
            "out of host memory for the streams that use a tensor: from now on every free waits for the GPUs");
    }
    if (!done) (void)report("record_stream", done.error());
  });
}

// PyTorch calls these three as C++, and may end at an exception of this library's.
VMEM_API void vmem_torch_begin_allocate_to_pool(int device, PoolId id, TorchPools::Filter filter) {
  without_exceptions([&] { torch_pools().begin({device, id}, std::move(filter)); });
}

VMEM_API void vmem_torch_end_allocate_to_pool(int device, PoolId id) {
  without_exceptions([&] { torch_pools().end({device, id}); });
}

VMEM_API void vmem_torch_release_pool(int device, PoolId id) {
  with_runtime([&](Runtime& runtime) {
    if (auto done = torch_pools().release(runtime, {device, id}); !done)
      (void)report("the end of a pool", done.error());
  });
}

int vmem_torch_pool_holds(int device, uint64_t id_first, uint64_t id_second, void* const* ptrs, size_t count) {
  bool holds = false;
  without_exceptions([&] { holds = torch_pools().holds({device, {id_first, id_second}}, {ptrs, count}); });
  return holds ? 1 : 0;
}

void vmem_torch_empty_cache(void) {
  with_runtime([&](Runtime& runtime) {
    if (auto done = runtime.blocks().empty_cache(); !done) (void)report("empty_cache", done.error());
  });
}

vmem_status vmem_torch_memory_stats(int device, vmem_torch_statistics* out) {
  if (!known_device(device) || out == nullptr) return VMEM_ERROR_INVALID_VALUE;
  std::uint64_t cached = 0;
  with_runtime([&](Runtime& runtime) { cached = runtime.blocks().cached_bytes(device); });
  Counters& counters = counters_of(device);
  const std::lock_guard lock(counters.mutex);
  auto& f = counters.figures;
  f.reserved_bytes = f.allocated_bytes + cached;
  f.reserved_bytes_peak = std::max({f.reserved_bytes_peak, f.reserved_bytes, f.allocated_bytes_peak});
  *out = f;
  return VMEM_OK;
}

void vmem_torch_reset_peak_stats(int device) {
  if (!known_device(device)) return;
  Counters& counters = counters_of(device);
  const std::lock_guard lock(counters.mutex);
  auto& f = counters.figures;
  f.allocated_bytes_peak = f.allocated_bytes;
  f.allocations_peak = f.allocations;
  f.reserved_bytes_peak = f.reserved_bytes;
}

}  // extern "C"
