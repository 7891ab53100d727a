// How a replaced driver function reaches the real one. An implementation is written once, as a function whose first argument is
// the Call; hook_table.hpp lists which driver functions it stands for.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>

#include "base/of_vmem.hpp"
#include "intercept/diagnosis.hpp"
#include "runtime/runtime.hpp"

namespace vmem::intercept {

// The driver's function behind a hook. Null without a driver, or where this one has none.
void* real_function(std::size_t hook);

template <class F>
struct Call;
template <class... A>
struct Call<CUresult(A...)> {
  std::size_t hook;
  bool per_thread;  // its default stream is the calling thread's

  CUresult operator()(A... arguments) const {
    auto* const real = reinterpret_cast<CUresult (*)(A...)>(real_function(hook));
    return real == nullptr ? CUDA_ERROR_NOT_INITIALIZED : real(arguments...);
  }
  CUstream stream(CUstream given) const { return given == nullptr && per_thread ? CU_STREAM_PER_THREAD : given; }
};

template <auto Implementation, std::size_t Hook, bool PerThread>
struct Entry;
template <class F, class... A, CUresult (*Implementation)(Call<F>, A...), std::size_t Hook, bool PerThread>
struct Entry<Implementation, Hook, PerThread> {
  static CUresult call(A... arguments) {
    const Call<F> real{Hook, PerThread};
    bool& flag = of_vmem();  // what the driver, or vmem, calls there is its own business
    if (flag) return real(arguments...);
    const OfVmem mark(flag);
    const CUresult result = Implementation(real, arguments...);
    if (gpu::is_sticky(result)) [[unlikely]]
      diagnose(result);
    return result;
  }
};

// dlsym as it is without the hooks.
void* find_symbol(void* library, const char* name);
// Makes vmem itself find the driver's own functions, not the hooks. Before it is started, which may be before any constructor ran.
void take_over();
// Whether this library came before the program's others, so that its functions are the ones that the program calls.
bool preloaded();

// The runtime, if it has been started, and the process is not ending.
runtime::Runtime* running();
// The same, started on first need. Null: it could not be, which has been said; `why` is what to return.
runtime::Runtime* started(CUresult& why);
// Says what went wrong, once for each kind of thing, and gives the driver's word for it.
CUresult report(const char* what, const Error& error);

inline bool ours(const runtime::Runtime* runtime, std::uintptr_t address) {
  return runtime != nullptr && address - runtime->space_base() < runtime->space_bytes();
}
inline bool ours(const runtime::Runtime* runtime, CUdeviceptr address) {
  return ours(runtime, std::uintptr_t{address});
}
// How many captures the program has begun, through a hook, and not ended. One that ends with its stream counts on: asking is all that
// costs.
std::atomic<std::uint32_t>& captures();
// Whether the program asked of any memory that synchronous calls be over when they return.
std::atomic<bool>& sync_memops_asked();
// Work on a stream in capture is only recorded: it is the graph's launch that runs it.
bool capturing(const runtime::Runtime& runtime, CUstream stream);

}  // namespace vmem::intercept
