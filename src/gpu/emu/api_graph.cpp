// Graphs and executables.
#include <algorithm>
#include <utility>

#include "gpu/emu/api_entry.hpp"
#include "gpu/emu/graph.hpp"

using namespace vmem::emu;

namespace {

CUresult find(CUgraph handle, std::shared_ptr<Graph>& graph) {
  VMEM_EMU_TRY(enter());
  graph = machine().graphs.find(handle);
  return graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult find(CUgraphNode handle, std::shared_ptr<Node>& node) {
  VMEM_EMU_TRY(enter());
  node = machine().nodes.find(handle);
  return node ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Finds a node and its work of this kind, for queries.
template <class Work>
CUresult find(CUgraphNode handle, std::shared_ptr<Node>& node, Work*& work) {
  VMEM_EMU_TRY(find(handle, node));
  work = std::get_if<Work>(&node->work);
  return work ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// `make` makes the node's work.
template <class Make>
CUresult add_node(CUgraphNode* handle, CUgraph graph_handle, const CUgraphNode* dependencies, std::size_t count,
                  Make&& make, const CUgraphEdgeData* edges = nullptr) {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(graph_handle, graph));
  if (!handle) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> before;
  VMEM_EMU_TRY(find_nodes(*graph, dependencies, edges, count, before));
  NodeWork work;
  VMEM_EMU_TRY(make(work));
  *handle = graph->add(std::move(work), std::move(before)).handle;
  return CUDA_SUCCESS;
}

CUresult make_child(CUgraph handle, NodeWork& work) {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(handle, graph));
  work = vmem::emu::make_child(*graph);
  return CUDA_SUCCESS;
}

CUresult make_any(const CUgraphNodeParams& p, NodeWork& work) {
  switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      return make_kernel({p.kernel.func, p.kernel.gridDimX, p.kernel.gridDimY, p.kernel.gridDimZ, p.kernel.blockDimX,
                          p.kernel.blockDimY, p.kernel.blockDimZ, p.kernel.sharedMemBytes, p.kernel.kernelParams,
                          p.kernel.extra, p.kernel.kern, p.kernel.ctx},
                         work);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return make_memcpy(p.memcpy.copyParams, p.memcpy.copyCtx, work);
    case CU_GRAPH_NODE_TYPE_MEMSET:
      return make_memset(
          {p.memset.dst, p.memset.pitch, p.memset.value, p.memset.elementSize, p.memset.width, p.memset.height},
          p.memset.ctx, work);
    case CU_GRAPH_NODE_TYPE_HOST:
      if (!p.host.fn) return CUDA_ERROR_INVALID_VALUE;
      work = HostWork{p.host.fn, p.host.userData};
      return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return p.graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE ? make_child(p.graph.graph, work)
                                                                       : CUDA_ERROR_NOT_SUPPORTED;
    case CU_GRAPH_NODE_TYPE_EMPTY:
      work = EmptyWork{};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Replaces a node's work by work of the same kind.
template <class Make>
CUresult set_node(CUgraphNode handle, Make&& make) {
  std::shared_ptr<Node> node;
  VMEM_EMU_TRY(find(handle, node));
  NodeWork work;
  VMEM_EMU_TRY(make(work));
  if (work.index() != node->work.index()) return CUDA_ERROR_INVALID_VALUE;
  node->work = std::move(work);
  return CUDA_SUCCESS;
}

template <class Make>
CUresult set_executable_node(CUgraphExec handle, CUgraphNode node_handle, Make&& make) {
  std::shared_ptr<Node> node;
  VMEM_EMU_TRY(find(node_handle, node));
  const auto executable = machine().executables.find(handle);
  if (!executable) return CUDA_ERROR_INVALID_VALUE;
  NodeWork work;
  VMEM_EMU_TRY(make(work));
  const std::lock_guard lock(executable->mutex);
  auto* const entry = executable->root.find(node_handle);
  if (!entry || !may_become(entry->work, work)) return CUDA_ERROR_INVALID_VALUE;
  entry->work = std::move(work);
  return CUDA_SUCCESS;
}

CUresult set_executable_child(CUgraphExec handle, CUgraphNode node_handle, CUgraph graph_handle) {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(graph_handle, graph));
  std::shared_ptr<Node> node;
  VMEM_EMU_TRY(find(node_handle, node));
  const auto executable = machine().executables.find(handle);
  if (!executable) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(executable->mutex);
  auto* const entry = executable->root.find(node_handle);
  CUgraphExecUpdateResultInfo info{};
  return entry && entry->child && entry->child->update(*graph, info) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

constexpr cuuint64_t instantiate_flags =
    CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;

CUresult instantiate(CUgraphExec* handle, CUgraph graph_handle, cuuint64_t flags, CUgraphNode& offender,
                     CUgraphInstantiateResult& reason) {
  reason = CUDA_GRAPH_INSTANTIATE_ERROR;
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(graph_handle, graph));
  if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) return CUDA_ERROR_NOT_SUPPORTED;
  if (!handle || (flags & ~instantiate_flags) || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  auto executable = std::make_shared<Executable>();
  executable->flags = flags;
  VMEM_EMU_TRY(executable->root.build(*graph, offender, reason));
  *handle = machine().executables.insert(std::move(executable));
  reason = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuGraphCreate(CUgraph* handle, unsigned flags) try {
  VMEM_EMU_TRY(enter());
  if (!handle || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  *handle = machine().graphs.insert(std::make_shared<Graph>());
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphClone(CUgraph* clone, CUgraph handle) try {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(handle, graph));
  if (!clone) return CUDA_ERROR_INVALID_VALUE;
  *clone = machine().graphs.insert(graph->clone());
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphDestroy(CUgraph handle) try {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(handle, graph));
  if (graph->owned) return CUDA_ERROR_INVALID_VALUE;
  return machine().graphs.erase(handle) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH

CUresult cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                              const CUDA_KERNEL_NODE_PARAMS* parameters) try {
  return add_node(node, graph, dependencies, count, [&](NodeWork& work) {
    return parameters ? make_kernel(*parameters, work) : CUDA_ERROR_INVALID_VALUE;
  });
}
VMEM_EMU_CATCH

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                              const CUDA_MEMCPY3D* parameters, CUcontext context) try {
  return add_node(node, graph, dependencies, count, [&](NodeWork& work) {
    return parameters ? make_memcpy(*parameters, context, work) : CUDA_ERROR_INVALID_VALUE;
  });
}
VMEM_EMU_CATCH

CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) try {
  return add_node(node, graph, dependencies, count, [&](NodeWork& work) {
    return parameters ? make_memset(*parameters, context, work) : CUDA_ERROR_INVALID_VALUE;
  });
}
VMEM_EMU_CATCH

CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count,
                                  CUgraph child) try {
  return add_node(node, graph, dependencies, count, [&](NodeWork& work) { return make_child(child, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, std::size_t count) try {
  return add_node(node, graph, dependencies, count, [](NodeWork&) { return CUDA_SUCCESS; });
}
VMEM_EMU_CATCH

CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                        std::size_t count, CUgraphNodeParams* parameters) try {
  const auto make = [&](NodeWork& work) { return parameters ? make_any(*parameters, work) : CUDA_ERROR_INVALID_VALUE; };
  return add_node(node, graph, dependencies, count, make, edges);
}
VMEM_EMU_CATCH

CUresult cuGraphAddDependencies(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                                const CUgraphEdgeData* edges, std::size_t count) try {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(handle, graph));
  if (count > 0 && (!from || !to)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::pair<Node*, Node*>> fresh;
  for (std::size_t i = 0; i < count; ++i) {
    std::vector<Node*> ends;
    VMEM_EMU_TRY(find_nodes(*graph, from + i, edges ? edges + i : nullptr, 1, ends));
    VMEM_EMU_TRY(find_nodes(*graph, to + i, nullptr, 1, ends));
    const std::pair edge(ends[0], ends[1]);
    if (contains(edge.second->dependencies, edge.first) || contains(fresh, edge)) return CUDA_ERROR_INVALID_VALUE;
    fresh.push_back(edge);
  }
  for (const auto& [before, after] : fresh) after->dependencies.push_back(before);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) try {
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(handle, graph));
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  const std::size_t there = graph->nodes().size();
  for (std::size_t i = 0; nodes && i < *count; ++i) nodes[i] = i < there ? graph->nodes()[i]->handle : nullptr;
  *count = nodes ? std::min(*count, there) : there;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) try {
  std::shared_ptr<Node> node;
  VMEM_EMU_TRY(find(handle, node));
  if (!type) return CUDA_ERROR_INVALID_VALUE;
  *type = type_of(node->work);
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphKernelNodeGetParams(CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS* parameters) try {
  std::shared_ptr<Node> node;
  KernelWork* kernel = nullptr;
  VMEM_EMU_TRY(find(handle, node, kernel));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  const vmem_emu_launch& shape = kernel->launch->shape;
  *parameters = {.func = kernel->handle,
                 .gridDimX = shape.grid[0],
                 .gridDimY = shape.grid[1],
                 .gridDimZ = shape.grid[2],
                 .blockDimX = shape.block[0],
                 .blockDimY = shape.block[1],
                 .blockDimZ = shape.block[2],
                 .sharedMemBytes = shape.shared_bytes,
                 .kernelParams = kernel->launch->params(),
                 .extra = kernel->launch->extra(),
                 .kern = nullptr,
                 .ctx = nullptr};
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode handle, CUDA_MEMCPY3D* parameters) try {
  std::shared_ptr<Node> node;
  MemcpyWork* copy = nullptr;
  VMEM_EMU_TRY(find(handle, node, copy));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  *parameters = copy->parameters;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphMemsetNodeGetParams(CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* parameters) try {
  std::shared_ptr<Node> node;
  MemsetWork* fill = nullptr;
  VMEM_EMU_TRY(find(handle, node, fill));
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  *parameters = fill->parameters;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) try {
  std::shared_ptr<Node> node;
  ChildGraphWork* child = nullptr;
  VMEM_EMU_TRY(find(handle, node, child));
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = child->handle;
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return set_node(node, [&](NodeWork& work) { return make_kernel(*parameters, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* parameters) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return set_node(node, [&](NodeWork& work) { return make_memcpy(*parameters, nullptr, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* parameters) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return set_node(node, [&](NodeWork& work) { return make_memset(*parameters, nullptr, work); });
}
VMEM_EMU_CATCH

// Not for child graphs: their nodes are set one by one, or with the executable's.
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* parameters) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_NOT_SUPPORTED;
  return set_node(node, [&](NodeWork& work) { return make_any(*parameters, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long flags) try {
  CUgraphNode offender = nullptr;
  CUgraphInstantiateResult reason{};
  return instantiate(executable, graph, flags, offender, reason);
}
VMEM_EMU_CATCH

// An upload does nothing: no data has to reach the device before a launch.
CUresult cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) try {
  VMEM_EMU_TRY(enter());
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  parameters->hErrNode_out = nullptr;
  parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  if (parameters->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
    std::shared_ptr<Stream> stream;
    VMEM_EMU_TRY(enter(parameters->hUploadStream, stream));
  }
  const cuuint64_t flags = parameters->flags & ~cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD};
  return instantiate(executable, graph, flags, parameters->hErrNode_out, parameters->result_out);
}
VMEM_EMU_CATCH

// Runs the nodes one after another, in an order that the graph allows. Launches of one executable
// do not overlap.
CUresult cuGraphLaunch(CUgraphExec handle, CUstream stream_handle) try {
  std::shared_ptr<Stream> stream;
  VMEM_EMU_TRY(enter(stream_handle, stream));
  const auto executable = machine().executables.find(handle);
  if (!executable) return CUDA_ERROR_INVALID_VALUE;
  if (const auto captured = captures::intercept_operation(*stream)) return *captured;
  const std::lock_guard lock(executable->mutex);
  VMEM_EMU_TRY(executable->root.usable());
  std::vector<NodeWork> all;
  executable->root.append_work(all);
  const auto work = [context = stream->context(), all = std::move(all)] {
    for (const NodeWork& each : all) {
      if (context->fault() != CUDA_SUCCESS) return;
      run(each);
    }
  };
  Wait wait;
  if (const Fence before = executable->last_launch; before.stream != nullptr) {
    wait = {[before] { return before.stream->completed(before.ticket); },
            [before] { before.stream->wait(before.ticket); }};
  }
  const std::uint64_t ticket = stream->context()->submit(*stream, work, AfterFault::skip, wait);
  executable->last_launch = {stream, ticket};
  return CUDA_SUCCESS;
}
VMEM_EMU_CATCH

CUresult cuGraphExecUpdate(CUgraphExec handle, CUgraph graph_handle, CUgraphExecUpdateResultInfo* info) try {
  VMEM_EMU_TRY(enter());
  if (!info) return CUDA_ERROR_INVALID_VALUE;
  *info = {CU_GRAPH_EXEC_UPDATE_ERROR, nullptr, nullptr};
  std::shared_ptr<Graph> graph;
  VMEM_EMU_TRY(find(graph_handle, graph));
  const auto executable = machine().executables.find(handle);
  if (!executable || graph->owned || graph->capturing) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(executable->mutex);
  return executable->root.update(*graph, *info) ? CUDA_SUCCESS : CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}
VMEM_EMU_CATCH

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS* parameters) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return set_executable_node(executable, node, [&](NodeWork& work) { return make_kernel(*parameters, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node, const CUDA_MEMCPY3D* parameters,
                                        CUcontext context) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return set_executable_node(executable, node, [&](NodeWork& work) { return make_memcpy(*parameters, context, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext context) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  return set_executable_node(executable, node, [&](NodeWork& work) { return make_memset(*parameters, context, work); });
}
VMEM_EMU_CATCH

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraph child) try {
  return set_executable_child(executable, node, child);
}
VMEM_EMU_CATCH

CUresult cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node, CUgraphNodeParams* parameters) try {
  if (!parameters) return CUDA_ERROR_INVALID_VALUE;
  if (parameters->type == CU_GRAPH_NODE_TYPE_GRAPH)
    return set_executable_child(executable, node, parameters->graph.graph);
  return set_executable_node(executable, node, [&](NodeWork& work) { return make_any(*parameters, work); });
}
VMEM_EMU_CATCH

// Launches in flight run to their end.
CUresult cuGraphExecDestroy(CUgraphExec executable) try {
  VMEM_EMU_TRY(enter());
  return machine().executables.erase(executable) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
VMEM_EMU_CATCH
