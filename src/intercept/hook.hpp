// How a replaced driver function reaches the real one. An implementation is a function whose first
// argument is the Call; hook_table.hpp lists the driver functions that it replaces.
#pragma once

#include <cuda.h>
#include <cxxabi.h>

#include <atomic>
#include <cstddef>

#include "base/of_vmem.hpp"
#include "intercept/diagnosis.hpp"
#include "runtime/runtime.hpp"

namespace vmem::intercept {

// The driver's function behind a hook. Null if no driver is loaded or the driver lacks the
// function.
void* real_function(std::size_t hook);

template <class F>
struct Call;
template <class... A>
struct Call<CUresult(A...)> {
  std::size_t hook;
  bool per_thread;  // stream 0 is the calling thread's default stream

  CUresult operator()(A... arguments) const {
    auto* const real = reinterpret_cast<CUresult (*)(A...)>(real_function(hook));
    return real == nullptr ? CUDA_ERROR_NOT_INITIALIZED : real(arguments...);
  }
  CUstream stream(CUstream given) const { return given == nullptr && per_thread ? CU_STREAM_PER_THREAD : given; }
};

// In a handler of an exception, which it logs at most 8 times: what the program is told.
CUresult report_exception() noexcept;
// No exception leaves vmem: the program and the driver may be C. But the end of a thread that is
// cancelled in a call of the driver does.
template <class Work>
CUresult refused_if_it_throws(Work&& work) {
  try {
    return work();
  } catch (const abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return report_exception();
  }
}

template <auto Implementation, std::size_t Hook, bool PerThread>
struct Entry;
template <class F, class... A, CUresult (*Implementation)(Call<F>, A...), std::size_t Hook, bool PerThread>
struct Entry<Implementation, Hook, PerThread> {
  static CUresult call(A... arguments) {
    const Call<F> real{Hook, PerThread};
    bool& flag = of_vmem();  // nested calls, made by the driver or by vmem, pass through
    if (flag) return refused_if_it_throws([&] { return real(arguments...); });
    const OfVmem mark(flag);
    const CUresult result = refused_if_it_throws([&] { return Implementation(real, arguments...); });
    if (gpu::is_sticky(result)) [[unlikely]]
      (void)refused_if_it_throws([&] { return diagnose(result), result; });
    return result;
  }
};

// The real dlsym, without the hooks.
void* find_symbol(void* library, const char* name);
// Makes vmem itself find the driver's own functions, not the hooks. Called before the runtime
// starts, possibly before any constructor has run.
void take_over();
// Whether this library precedes the program's other libraries, so that the program calls the hooks.
bool preloaded();

// The runtime; null if it has not started, or if the process is ending or forked.
runtime::Runtime* running();
// As running(), but starts the runtime if needed. On failure, already reported, returns null;
// return `why` to the program.
runtime::Runtime* started(CUresult& why);
// Logs a failure, at most 8 times per status, and translates it to a driver error code.
CUresult report(const char* what, const Error& error);

inline bool ours(const runtime::Runtime* runtime, std::uintptr_t address) {
  return runtime != nullptr && address - runtime->space().base() < runtime->space().bytes();
}
inline bool ours(const runtime::Runtime* runtime, CUdeviceptr address) {
  return ours(runtime, std::uintptr_t{address});
}
// How many captures the program has begun through a hook and not ended. A capture that ended with
// its stream stays counted; the only cost is one more query per call.
std::atomic<std::uint32_t>& captures();
// Whether the program asked, for any memory, that synchronous calls be complete on return.
std::atomic<bool>& sync_memops_asked();
// Work on a capturing stream is only recorded: the graph's launch runs it.
bool capturing(const runtime::Runtime& runtime, CUstream stream);

}  // namespace vmem::intercept
