// Graphs. vmem collects the addresses that a graph's nodes name at instantiation, and holds them at
// each launch. Captures are untouched: the resulting nodes contain all that is needed. The driver
// requires mapped memory when a copy or fill node is described, and again when a fill is
// instantiated.
#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/log.hpp"
#include "intercept/hook_table.hpp"
#include "intercept/implementations.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

std::mutex executables_mutex;
// A launch uses the list current at its beginning.
using Executables = std::map<CUgraphExec, std::shared_ptr<const References>>;
Executables executables;

// The addresses of a graph, or of a changed node.
struct Named {
  References all;
  References looked_at;  // the subset that the driver checks
  explicit Named(const Runtime& runtime) {
    all.begin(runtime);
    looked_at.begin(runtime);
  }
  void add_looked_at(CUdeviceptr address) {
    all.add(address);
    looked_at.add(address);
  }
};

void add_kernel(const Runtime& runtime, References& references, CUfunction function, CUkernel kernel, void** parameters,
                void** extra) {
  if (function == nullptr) function = reinterpret_cast<CUfunction>(kernel);
  if (function != nullptr) references.add_parameters(runtime, function, parameters, extra);
}

template <class Add>
void each_end(const CUDA_MEMCPY3D& copy, Add&& add) {
  if (copy.srcMemoryType != CU_MEMORYTYPE_ARRAY && copy.srcMemoryType != CU_MEMORYTYPE_HOST) add(copy.srcDevice);
  if (copy.dstMemoryType != CU_MEMORYTYPE_ARRAY && copy.dstMemoryType != CU_MEMORYTYPE_HOST) add(copy.dstDevice);
}

// For a node that the program describes: the driver checks its addresses.
CUresult add_copy(Named& named, const CUDA_MEMCPY3D& copy) {
  each_end(copy, [&](CUdeviceptr address) { named.add_looked_at(address); });
  return CUDA_SUCCESS;
}
CUresult add_fill(Named& named, const CUDA_MEMSET_NODE_PARAMS& fill) {
  named.add_looked_at(fill.dst);
  return CUDA_SUCCESS;
}

// For a graph that becomes part of another object: the driver checks only the fill targets.
CUresult add_graph(const Runtime& runtime, Named& named, CUgraph graph);

// No driver call returns the bodies of a conditional node, and memory operations would need their
// addresses kept in place.
bool hides_memory(CUgraphNodeType type) {
  return type == CU_GRAPH_NODE_TYPE_CONDITIONAL || type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
}

CUresult add_node(const Runtime& runtime, Named& named, CUgraphNode node) {
  const gpu::Driver& driver = runtime.driver();
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUresult result = driver->cuGraphNodeGetType(node, &type);
  if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_KERNEL) {
    CUDA_KERNEL_NODE_PARAMS kernel{};
    result = driver->cuGraphKernelNodeGetParams(node, &kernel);
    if (result == CUDA_SUCCESS)
      add_kernel(runtime, named.all, kernel.func, kernel.kern, kernel.kernelParams, kernel.extra);
  } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    CUDA_MEMCPY3D copy{};
    result = driver->cuGraphMemcpyNodeGetParams(node, &copy);
    if (result == CUDA_SUCCESS) each_end(copy, [&](CUdeviceptr address) { named.all.add(address); });
  } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMSET) {
    CUDA_MEMSET_NODE_PARAMS fill{};
    result = driver->cuGraphMemsetNodeGetParams(node, &fill);
    if (result == CUDA_SUCCESS) named.add_looked_at(fill.dst);
  } else if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_GRAPH) {
    CUgraph child = nullptr;
    result = driver->cuGraphChildGraphNodeGetGraph(node, &child);
    if (result == CUDA_SUCCESS) result = add_graph(runtime, named, child);
  } else if (result == CUDA_SUCCESS && hides_memory(type)) {
    result = CUDA_ERROR_NOT_SUPPORTED;
  }
  return result;
}

CUresult add_graph(const Runtime& runtime, Named& named, CUgraph graph) {
  const gpu::Driver& driver = runtime.driver();
  if (driver->cuGraphGetNodes == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  std::size_t count = 0;
  if (const CUresult result = driver->cuGraphGetNodes(graph, nullptr, &count); result != CUDA_SUCCESS) return result;
  std::vector<CUgraphNode> nodes(count);
  if (count == 0) return CUDA_SUCCESS;
  if (const CUresult result = driver->cuGraphGetNodes(graph, nodes.data(), &count); result != CUDA_SUCCESS)
    return result;
  for (CUgraphNode node : nodes) {
    if (const CUresult result = add_node(runtime, named, node); result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

// For the calls that take any kind of node.
CUresult add_any(const Runtime& runtime, Named& named, const CUgraphNodeParams& node) {
  switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      add_kernel(runtime, named.all, node.kernel.func, node.kernel.kern, node.kernel.kernelParams, node.kernel.extra);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return add_copy(named, node.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      named.add_looked_at(node.memset.dst);
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return add_graph(runtime, named, node.graph.graph);
    default:
      return CUDA_SUCCESS;
  }
}

std::shared_ptr<const References> known(CUgraphExec executable) {
  const std::lock_guard lock(executables_mutex);
  const auto found = executables.find(executable);
  return found == executables.end() ? nullptr : found->second;
}

// Made before the driver's call, so that nothing can fail after it.
Executables::node_type prepare(References references) {
  references.finish_graph();
  Executables one;
  one.emplace(nullptr, std::make_shared<const References>(std::move(references)));
  return one.extract(one.begin());
}

void remember(CUgraphExec executable, Executables::node_type prepared) noexcept {
  const std::lock_guard lock(executables_mutex);
  executables.erase(executable);
  prepared.key() = executable;
  executables.insert(std::move(prepared));
}

// For calls without a stream: the driver only checks the memory.
template <class Real>
CUresult told(Runtime& runtime, const References& references, Real&& real) {
  return with_memory(runtime, references, CU_STREAM_LEGACY, "a node of a graph", real);
}

// For a node that is not yet in an executable.
template <class Add, class Real>
CUresult described(Add&& add, Real&& real) {
  Runtime* runtime = running();
  if (runtime == nullptr) return real();
  Named named(*runtime);
  // the driver refuses the node
  if (const CUresult read = add(*runtime, named); read != CUDA_SUCCESS) return real();
  return told(*runtime, named.looked_at, real);
}

CUresult unreadable(CUresult result) {
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    VMEM_LOG_ERROR("vmem cannot serve a graph with conditional nodes or stream memory operations; it was refused");
    return result;
  }
  return report("a graph", {VMEM_ERROR_DRIVER, int(result), "the nodes of a graph cannot be read"});
}

// For calls that make an executable from a graph. An unreadable graph is left for the driver to
// refuse.
template <class Real>
CUresult learn(const CUgraphExec* executable, CUgraph graph, Real&& real) {
  Runtime* runtime = running();
  if (runtime == nullptr) return real();
  Named named(*runtime);
  const CUresult read = add_graph(*runtime, named, graph);
  if (read == CUDA_ERROR_NOT_SUPPORTED) return unreadable(read);
  auto prepared = prepare(std::move(named.all));
  const CUresult result = told(*runtime, named.looked_at, real);
  if (result != CUDA_SUCCESS) return result;
  if (read != CUDA_SUCCESS) return unreadable(read);
  remember(*executable, std::move(prepared));
  return CUDA_SUCCESS;
}

// For a changed node of an executable. Addresses named before stay in the list, which is harmless.
template <class Add, class Real>
CUresult learn_more(CUgraphExec executable, Add&& add, Real&& real) {
  Runtime* runtime = running();
  if (runtime == nullptr) return real();
  Named fresh(*runtime);
  const CUresult read = add(*runtime, fresh);
  if (read == CUDA_ERROR_NOT_SUPPORTED) return unreadable(read);
  // An executable made before vmem started names no vmem memory.
  const auto before = known(executable);
  References all = before == nullptr ? Named(*runtime).all : *before;
  for (const std::uintptr_t address : fresh.all.addresses()) all.add(address);
  auto prepared = prepare(std::move(all));
  const CUresult result = told(*runtime, fresh.looked_at, real);
  if (result != CUDA_SUCCESS) return result;
  if (read != CUDA_SUCCESS) return unreadable(read);
  remember(executable, std::move(prepared));
  return CUDA_SUCCESS;
}

std::mutex begun_mutex;
std::unordered_multiset<CUstream> begun;  // counted captures, by the stream on which they began

void count_capture(CUstream stream) {
  const std::lock_guard lock(begun_mutex);
  begun.insert(stream);
  captures().fetch_add(1, std::memory_order_seq_cst);
}
void uncount_capture(CUstream stream) {
  const std::lock_guard lock(begun_mutex);
  const auto found = begun.find(stream);
  if (found == begun.end()) return;
  begun.erase(found);
  captures().fetch_sub(1, std::memory_order_release);
}

// Counts before the capture begins: later calls on the stream must ask whether it is capturing.
template <class Real>
CUresult begin_capture(CUstream stream, Real&& real) {
  if (Runtime* runtime = running()) runtime->streams().expect_capture(stream);
  count_capture(stream);
  const CUresult result = real();
  if (result != CUDA_SUCCESS) uncount_capture(stream);
  return result;
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
  // Some failures end a capture, others do not.
  const CUstream named = call.stream(stream);
  Runtime* runtime = running();
  if (runtime != nullptr && !capturing(*runtime, named)) uncount_capture(named);
  return result;
}

CUresult graph_instantiate_with_flags(Call<decltype(::cuGraphInstantiateWithFlags)> call, CUgraphExec* executable,
                                      CUgraph graph, unsigned long long flags) {
  return learn(executable, graph, [&] { return call(executable, graph, flags); });
}

CUresult graph_instantiate_with_params(Call<decltype(::cuGraphInstantiateWithParams)> call, CUgraphExec* executable,
                                       CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return learn(executable, graph, [&] { return call(executable, graph, parameters); });
}

CUresult graph_launch(Call<decltype(::cuGraphLaunch)> call, CUgraphExec executable, CUstream stream) {
  Runtime* runtime = running();
  if (runtime == nullptr) return call(executable, stream);
  const auto references = known(executable);
  if (references == nullptr) {
    // Instantiated before vmem started, so without vmem memory, or through a function older than
    // CUDA 12.
    static std::once_flag said;
    std::call_once(said, [] {
      VMEM_LOG_WARN(
          "a CUDA graph is launched whose instantiation was not seen: if it uses memory of vmem's, that is not kept in "
          "place");
    });
    const auto moves_wait = runtime->move_gate().hold_back_moves();
    return call(executable, stream);
  }
  return with_references(*runtime, *references, call.stream(stream), "a graph launch",
                         [&] { return call(executable, stream); });
}

CUresult graph_exec_update(Call<decltype(::cuGraphExecUpdate)> call, CUgraphExec executable, CUgraph graph,
                           CUgraphExecUpdateResultInfo* info) {
  return learn(&executable, graph, [&] { return call(executable, graph, info); });
}

CUresult graph_exec_kernel_node(Call<decltype(::cuGraphExecKernelNodeSetParams)> call, CUgraphExec executable,
                                CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) {
  return learn_more(
      executable,
      [&](Runtime& runtime, Named& named) {
        if (parameters != nullptr)
          add_kernel(runtime, named.all, parameters->func, parameters->kern, parameters->kernelParams,
                     parameters->extra);
        return CUDA_SUCCESS;
      },
      [&] { return call(executable, node, parameters); });
}

CUresult graph_exec_memcpy_node(Call<decltype(::cuGraphExecMemcpyNodeSetParams)> call, CUgraphExec executable,
                                CUgraphNode node, const CUDA_MEMCPY3D* parameters, CUcontext context) {
  return learn_more(
      executable,
      [&](Runtime&, Named& named) { return parameters == nullptr ? CUDA_SUCCESS : add_copy(named, *parameters); },
      [&] { return call(executable, node, parameters, context); });
}

CUresult graph_exec_memset_node(Call<decltype(::cuGraphExecMemsetNodeSetParams)> call, CUgraphExec executable,
                                CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  return learn_more(
      executable,
      [&](Runtime&, Named& named) { return parameters == nullptr ? CUDA_SUCCESS : add_fill(named, *parameters); },
      [&] { return call(executable, node, parameters, context); });
}

CUresult graph_exec_child_node(Call<decltype(::cuGraphExecChildGraphNodeSetParams)> call, CUgraphExec executable,
                               CUgraphNode node, CUgraph graph) {
  return learn_more(
      executable, [&](Runtime& runtime, Named& named) { return add_graph(runtime, named, graph); },
      [&] { return call(executable, node, graph); });
}

CUresult graph_exec_node(Call<decltype(::cuGraphExecNodeSetParams)> call, CUgraphExec executable, CUgraphNode node,
                         CUgraphNodeParams* parameters) {
  return learn_more(
      executable,
      [&](Runtime& runtime, Named& named) {
        return parameters == nullptr ? CUDA_SUCCESS : add_any(runtime, named, *parameters);
      },
      [&] { return call(executable, node, parameters); });
}

CUresult graph_exec_destroy(Call<decltype(::cuGraphExecDestroy)> call, CUgraphExec executable) {
  {
    const std::lock_guard lock(executables_mutex);
    executables.erase(executable);
  }
  return call(executable);
}

CUresult graph_add_memcpy_node(Call<decltype(::cuGraphAddMemcpyNode)> call, CUgraphNode* node, CUgraph graph,
                               const CUgraphNode* dependencies, std::size_t count, const CUDA_MEMCPY3D* parameters,
                               CUcontext context) {
  return described(
      [&](Runtime&, Named& named) { return parameters == nullptr ? CUDA_SUCCESS : add_copy(named, *parameters); },
      [&] { return call(node, graph, dependencies, count, parameters, context); });
}

CUresult graph_add_memset_node(Call<decltype(::cuGraphAddMemsetNode)> call, CUgraphNode* node, CUgraph graph,
                               const CUgraphNode* dependencies, std::size_t count,
                               const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) {
  return described(
      [&](Runtime&, Named& named) { return parameters == nullptr ? CUDA_SUCCESS : add_fill(named, *parameters); },
      [&] { return call(node, graph, dependencies, count, parameters, context); });
}

CUresult graph_add_node(Call<decltype(::cuGraphAddNode)> call, CUgraphNode* node, CUgraph graph,
                        const CUgraphNode* dependencies, const CUgraphEdgeData* edges, std::size_t count,
                        CUgraphNodeParams* parameters) {
  return described(
      [&](Runtime& runtime, Named& named) {
        return parameters == nullptr ? CUDA_SUCCESS : add_any(runtime, named, *parameters);
      },
      [&] { return call(node, graph, dependencies, edges, count, parameters); });
}

CUresult graph_memcpy_node(Call<decltype(::cuGraphMemcpyNodeSetParams)> call, CUgraphNode node,
                           const CUDA_MEMCPY3D* parameters) {
  return described(
      [&](Runtime&, Named& named) { return parameters == nullptr ? CUDA_SUCCESS : add_copy(named, *parameters); },
      [&] { return call(node, parameters); });
}

CUresult graph_memset_node(Call<decltype(::cuGraphMemsetNodeSetParams)> call, CUgraphNode node,
                           const CUDA_MEMSET_NODE_PARAMS* parameters) {
  return described(
      [&](Runtime&, Named& named) { return parameters == nullptr ? CUDA_SUCCESS : add_fill(named, *parameters); },
      [&] { return call(node, parameters); });
}

CUresult graph_node(Call<decltype(::cuGraphNodeSetParams)> call, CUgraphNode node, CUgraphNodeParams* parameters) {
  return described(
      [&](Runtime& runtime, Named& named) {
        return parameters == nullptr ? CUDA_SUCCESS : add_any(runtime, named, *parameters);
      },
      [&] { return call(node, parameters); });
}

}  // namespace vmem::intercept
