// Kernel launches.
#include <cstdint>
#include <optional>
#include <span>

#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

// While every page is resident and use tracking is off, most launches need not read their
// arguments.
bool may_pass_unlooked(const runtime::Runtime& runtime, const LaunchScratch& scratch) {
  return runtime.launches().any_device_all_resident() && captures().load(std::memory_order_acquire) == 0 &&
         !scratch.looks.under_way();
}

template <class Queue>
CUresult launch_of_anything(runtime::Runtime& runtime, FunctionFacts& facts, CUstream stream,
                            const std::optional<std::span<const std::uintptr_t>>& named, runtime::LaunchHolds& holds,
                            Queue&& queue) {
  runtime::HeldLaunch held(runtime.launches(), holds);
  holds.what = traced_as(runtime, &facts, "a kernel");
  note_launch(&facts, stream, named);
  const CUresult queued = queue();
  if (queued != CUDA_SUCCESS) return queued;
  const Status ended = held.end();
  return ended ? CUDA_SUCCESS : report("a kernel launch", ended.error());
}

template <class Queue>
CUresult launch(CUfunction function, CUstream stream, void** parameters, void** extra, Queue&& queue) {
  runtime::Runtime* runtime = running();
  if (runtime == nullptr) return queue();
  LaunchScratch& scratch = launch_scratch();
  const bool may_pass = may_pass_unlooked(*runtime, scratch);
  bool passes = false;
  if (may_pass && runtime->launches().follows_tables()) {
    FunctionFacts& facts = facts_of(*runtime, function);
    passes = facts.pass_unlooked();
    if (passes && runtime->launches().begin_if_all_resident(stream, std::nullopt, scratch.holds))
      return launch_of_anything(*runtime, facts, stream, std::nullopt, scratch.holds, queue);
  }
  References& references = scratch.references;
  references.begin(*runtime);
  references.add_parameters(*runtime, function, parameters, extra);
  const auto named = references.addresses();
  // A launch that names one address cannot link one table to another allocation. A launch that
  // names none uses no vmem memory.
  passes = passes || (may_pass && (named.size() == 1 || !runtime->launches().follows_tables()));
  if (passes && !named.empty() && runtime->launches().begin_if_all_resident(stream, named, scratch.holds))
    return launch_of_anything(*runtime, *references.facts(), stream, named, scratch.holds, queue);
  return with_references(*runtime, references, stream, "a kernel launch", queue);
}

// While a trace is recorded, logs that the program recorded an event on the stream, or made the
// stream wait for one. Returns `result`, the driver's.
CUresult with_signal(CUresult result, CUstream stream, CUevent event, bool waits) {
  runtime::Runtime* const runtime = running();
  if (runtime == nullptr || runtime->recorder() == nullptr || runtime->recorder()->ended()) [[likely]]
    return result;
  if (result != CUDA_SUCCESS || capturing(*runtime, stream)) return result;
  const std::uint32_t number = runtime->recorder()->number_of_event(reinterpret_cast<std::uintptr_t>(event));
  runtime->launches().note_signal(stream, number, waits);
  return result;
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): the driver's parameters
CUresult launch_kernel(Call<decltype(::cuLaunchKernel)> call, CUfunction function, unsigned grid_x, unsigned grid_y,
                       unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                       CUstream stream, void** parameters, void** extra) {
  return launch(function, call.stream(stream), parameters, extra, [&] {
    return call(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra);
  });
}

CUresult launch_kernel_ex(Call<decltype(::cuLaunchKernelEx)> call, const CUlaunchConfig* config, CUfunction function,
                          void** parameters, void** extra) {
  if (config == nullptr) return call(config, function, parameters, extra);
  return launch(function, call.stream(config->hStream), parameters, extra,
                [&] { return call(config, function, parameters, extra); });
}

CUresult launch_cooperative_kernel(Call<decltype(::cuLaunchCooperativeKernel)> call, CUfunction function,
                                   unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                   unsigned block_y, unsigned block_z, unsigned shared_bytes, CUstream stream,
                                   void** parameters) {
  return launch(function, call.stream(stream), parameters, nullptr, [&] {
    return call(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters);
  });
}

CUresult module_unload(Call<decltype(::cuModuleUnload)> call, CUmodule module) {
  const CUresult result = call(module);
  forget_layouts();
  return result;
}

CUresult library_unload(Call<decltype(::cuLibraryUnload)> call, CUlibrary library) {
  const CUresult result = call(library);
  forget_layouts();
  return result;
}

CUresult event_record(Call<decltype(::cuEventRecord)> call, CUevent event, CUstream stream) {
  return with_signal(call(event, stream), call.stream(stream), event, false);
}
CUresult event_record_with_flags(Call<decltype(::cuEventRecordWithFlags)> call, CUevent event, CUstream stream,
                                 unsigned flags) {
  return with_signal(call(event, stream, flags), call.stream(stream), event, false);
}
CUresult stream_wait_event(Call<decltype(::cuStreamWaitEvent)> call, CUstream stream, CUevent event, unsigned flags) {
  return with_signal(call(stream, event, flags), call.stream(stream), event, true);
}

// Programs first see a kernel's error in these calls: the hooks only diagnose (diagnosis.hpp).
CUresult stream_synchronize(Call<decltype(::cuStreamSynchronize)> call, CUstream stream) { return call(stream); }
CUresult stream_query(Call<decltype(::cuStreamQuery)> call, CUstream stream) { return call(stream); }
CUresult event_synchronize(Call<decltype(::cuEventSynchronize)> call, CUevent event) { return call(event); }
CUresult event_query(Call<decltype(::cuEventQuery)> call, CUevent event) { return call(event); }
CUresult context_synchronize(Call<decltype(::cuCtxSynchronize)> call) { return call(); }
CUresult named_context_synchronize(Call<decltype(::cuCtxSynchronize_v2)> call, CUcontext context) {
  return call(context);
}

CUresult stream_destroy(Call<decltype(::cuStreamDestroy)> call, CUstream stream) {
  if (runtime::Runtime* runtime = running()) {
    // While the handle is valid: later it may name another stream, and a query may crash the
    // driver.
    if (auto closed = runtime->close_stream(stream); !closed) (void)report("the end of a stream", closed.error());
  }
  return call(stream);
}

}  // namespace vmem::intercept
