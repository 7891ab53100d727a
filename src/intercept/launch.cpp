// Kernel launches.
#include <cstdint>
#include <optional>
#include <span>

#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

// While everything is at hand and nobody asks what is used, most launches need no look at what they name.
bool may_pass_unlooked(const runtime::Runtime& runtime, const LaunchScratch& scratch) {
  return runtime.all_at_hand() && captures().load(std::memory_order_acquire) == 0 && !scratch.looks.under_way();
}

template <class Queue>
CUresult launch_of_anything(runtime::Runtime& runtime, const FunctionFacts& facts, CUstream stream,
                            const std::optional<std::span<const std::uintptr_t>>& named, runtime::LaunchHolds& holds,
                            Queue&& queue) {
  note_launch(&facts, stream, named);
  const CUresult queued = queue();
  if (queued != CUDA_SUCCESS) {
    runtime.abandon_launch(holds);
    return queued;
  }
  const Status ended = runtime.end_launch(holds);
  return ended ? CUDA_SUCCESS : report("a kernel launch", ended.error());
}

template <class Queue>
CUresult launch(CUfunction function, CUstream stream, void** parameters, void** extra, Queue&& queue) {
  runtime::Runtime* runtime = running();
  if (runtime == nullptr) return queue();
  LaunchScratch& scratch = launch_scratch();
  const bool may_pass = may_pass_unlooked(*runtime, scratch);
  bool passes = false;
  if (may_pass && runtime->follows_tables()) {
    FunctionFacts& facts = facts_of(*runtime, function);
    passes = facts.pass_unlooked();
    if (passes && runtime->begin_launch_of_anything(stream, std::nullopt, scratch.holds))
      return launch_of_anything(*runtime, facts, stream, std::nullopt, scratch.holds, queue);
  }
  References& references = scratch.references;
  references.begin(*runtime);
  references.add_parameters(*runtime, function, parameters, extra);
  const auto named = references.addresses();
  // What names one thing makes no table that leads to another. What names nothing uses nothing.
  passes = passes || (may_pass && (named.size() == 1 || !runtime->follows_tables()));
  if (passes && !named.empty() && runtime->begin_launch_of_anything(stream, named, scratch.holds))
    return launch_of_anything(*runtime, *references.facts(), stream, named, scratch.holds, queue);
  return with_references(*runtime, references, stream, "a kernel launch", queue);
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

// Where programs hear of a kernel's error first: see diagnosis.hpp.
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
    // While the handle is valid: afterwards it may mean another stream, and asking about it may crash the driver.
    if (auto closed = runtime->close_stream(stream); !closed) (void)report("the end of a stream", closed.error());
  }
  return call(stream);
}

}  // namespace vmem::intercept
