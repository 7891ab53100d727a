// Graphs. What a graph's nodes name is collected when it is instantiated, and is in place whenever it is launched. A capture is
// never touched: the nodes that it leaves behind say all there is to know.
#include <memory>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

std::mutex executables_mutex;
// A launch uses the list that was current when it began.
std::unordered_map<CUgraphExec, std::shared_ptr<const References>> executables;

void add_kernel(const Runtime& runtime, References& references, const CUDA_KERNEL_NODE_PARAMS& node) {
  CUfunction function = node.func != nullptr ? node.func : reinterpret_cast<CUfunction>(node.kern);
  if (function != nullptr) references.add_parameters(runtime, function, node.kernelParams, node.extra);
}

void add_copy(References& references, const CUDA_MEMCPY3D& node) {
  if (node.srcMemoryType != CU_MEMORYTYPE_ARRAY && node.srcMemoryType != CU_MEMORYTYPE_HOST)
    references.add(node.srcDevice);
  if (node.dstMemoryType != CU_MEMORYTYPE_ARRAY && node.dstMemoryType != CU_MEMORYTYPE_HOST)
    references.add(node.dstDevice);
}

CUresult add_graph(const Runtime& runtime, References& references, CUgraph graph) {
  const gpu::Driver& driver = runtime.driver();
  if (driver->cuGraphGetNodes == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  std::size_t count = 0;
  if (const CUresult result = driver->cuGraphGetNodes(graph, nullptr, &count); result != CUDA_SUCCESS) return result;
  std::vector<CUgraphNode> nodes(count);
  if (count == 0) return CUDA_SUCCESS;
  if (const CUresult result = driver->cuGraphGetNodes(graph, nodes.data(), &count); result != CUDA_SUCCESS)
    return result;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    CUresult result = driver->cuGraphNodeGetType(node, &type);
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL) {
      CUDA_KERNEL_NODE_PARAMS kernel{};
      result = driver->cuGraphKernelNodeGetParams(node, &kernel);
      if (result == CUDA_SUCCESS) add_kernel(runtime, references, kernel);
    } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      CUDA_MEMCPY3D copy{};
      result = driver->cuGraphMemcpyNodeGetParams(node, &copy);
      if (result == CUDA_SUCCESS) add_copy(references, copy);
    } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMSET) {
      CUDA_MEMSET_NODE_PARAMS fill{};
      result = driver->cuGraphMemsetNodeGetParams(node, &fill);
      if (result == CUDA_SUCCESS) references.add(fill.dst);
    } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      result = driver->cuGraphChildGraphNodeGetGraph(node, &child);
      if (result == CUDA_SUCCESS) result = add_graph(runtime, references, child);
    }
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

std::shared_ptr<const References> known(CUgraphExec executable) {
  const std::lock_guard lock(executables_mutex);
  const auto found = executables.find(executable);
  return found == executables.end() ? nullptr : found->second;
}

void remember(CUgraphExec executable, std::shared_ptr<const References> references) {
  const std::lock_guard lock(executables_mutex);
  executables[executable] = std::move(references);
}

CUresult learn(Runtime& runtime, CUgraphExec executable, CUgraph graph) {
  auto references = std::make_shared<References>();
  references->begin(runtime);
  const CUresult result = add_graph(runtime, *references, graph);
  references->finish_graph();
  if (result == CUDA_SUCCESS) remember(executable, std::move(references));
  return result;
}

// A node of an executable changes: what it named before is still named, which does no harm.
template <class Add>
void learn_more(CUgraphExec executable, Add&& add) {
  Runtime* runtime = running();
  const auto before = known(executable);
  if (runtime == nullptr || before == nullptr) return;
  auto references = std::make_shared<References>(*before);
  add(*runtime, *references);
  references->finish_graph();
  remember(executable, std::move(references));
}

std::mutex begun_mutex;
std::unordered_multiset<CUstream> begun;  // captures that were counted, by where they began

// Counted before it begins: whoever queues work on the stream from then on asks whether it is capturing.
template <class Real>
CUresult begin_capture(CUstream stream, Real&& real) {
  if (Runtime* runtime = running()) runtime->expect_capture(stream);
  captures().fetch_add(1, std::memory_order_seq_cst);
  const CUresult result = real();
  if (result != CUDA_SUCCESS) {
    captures().fetch_sub(1, std::memory_order_release);
    return result;
  }
  const std::lock_guard lock(begun_mutex);
  begun.insert(stream);
  return result;
}

template <class Real>
CUresult instantiate(CUgraphExec* executable, CUgraph graph, Real&& real) {
  const CUresult result = real();
  Runtime* runtime = running();
  if (result != CUDA_SUCCESS || runtime == nullptr) return result;
  if (const CUresult learned = learn(*runtime, *executable, graph); learned != CUDA_SUCCESS) {
    (void)report("a graph", {VMEM_ERROR_DRIVER, int(learned), "the nodes of a graph cannot be read"});
    return learned;
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult stream_begin_capture(Call<decltype(::cuStreamBeginCapture)> call, CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(call.stream(stream), [&] { return call(stream, mode); });
}

CUresult stream_begin_capture_to_graph(Call<decltype(::cuStreamBeginCaptureToGraph)> call, CUstream stream,
                                       CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData* edges,
                                       std::size_t count, CUstreamCaptureMode mode) {
  return begin_capture(call.stream(stream), [&] { return call(stream, graph, nodes, edges, count, mode); });
}

CUresult stream_end_capture(Call<decltype(::cuStreamEndCapture)> call, CUstream stream, CUgraph* graph) {
  const CUresult result = call(stream, graph);
  // Some failures end a capture, others leave it as it was.
  const CUstream named = call.stream(stream);
  Runtime* runtime = running();
  if (runtime == nullptr || capturing(*runtime, named)) return result;
  const std::lock_guard lock(begun_mutex);
  if (const auto found = begun.find(named); found != begun.end()) {
    begun.erase(found);
    captures().fetch_sub(1, std::memory_order_release);
  }
  return result;
}

CUresult graph_instantiate_with_flags(Call<decltype(::cuGraphInstantiateWithFlags)> call, CUgraphExec* executable,
                                      CUgraph graph, unsigned long long flags) {
  return instantiate(executable, graph, [&] { return call(executable, graph, flags); });
}

CUresult graph_instantiate_with_params(Call<decltype(::cuGraphInstantiateWithParams)> call, CUgraphExec* executable,
                                       CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return instantiate(executable, graph, [&] { return call(executable, graph, parameters); });
}

CUresult graph_launch(Call<decltype(::cuGraphLaunch)> call, CUgraphExec executable, CUstream stream) {
  Runtime* runtime = running();
  if (runtime == nullptr) return call(executable, stream);
  const auto references = known(executable);
  if (references == nullptr) {
    const auto moves_wait = runtime->hold_back_moves();
    return call(executable, stream);
  }
  return with_references(*runtime, *references, call.stream(stream), "a graph launch",
                         [&] { return call(executable, stream); });
}

CUresult graph_exec_update(Call<decltype(::cuGraphExecUpdate)> call, CUgraphExec executable, CUgraph graph,
                           CUgraphExecUpdateResultInfo* info) {
  const CUresult result = call(executable, graph, info);
  Runtime* runtime = running();
  if (result != CUDA_SUCCESS || runtime == nullptr) return result;
  return learn(*runtime, executable, graph);
}

CUresult graph_exec_kernel_node(Call<decltype(::cuGraphExecKernelNodeSetParams)> call, CUgraphExec executable,
                                CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  const CUresult result = call(executable, node, parameters);
  if (result == CUDA_SUCCESS) {
    learn_more(executable,
               [&](Runtime& runtime, References& references) { add_kernel(runtime, references, *parameters); });
  }
  return result;
}

CUresult graph_exec_memcpy_node(Call<decltype(::cuGraphExecMemcpyNodeSetParams)> call, CUgraphExec executable,
                                CUgraphNode node, const CUDA_MEMCPY3D* parameters, CUcontext context) {
  const CUresult result = call(executable, node, parameters, context);
  if (result == CUDA_SUCCESS)
    learn_more(executable, [&](Runtime&, References& references) { add_copy(references, *parameters); });
  return result;
}

CUresult graph_exec_memset_node(Call<decltype(::cuGraphExecMemsetNodeSetParams)> call, CUgraphExec executable,
                                CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  const CUresult result = call(executable, node, parameters, context);
  if (result == CUDA_SUCCESS)
    learn_more(executable, [&](Runtime&, References& references) { references.add(parameters->dst); });
  return result;
}

CUresult graph_exec_destroy(Call<decltype(::cuGraphExecDestroy)> call, CUgraphExec executable) {
  {
    const std::lock_guard lock(executables_mutex);
    executables.erase(executable);
  }
  return call(executable);
}

}  // namespace vmem::intercept
