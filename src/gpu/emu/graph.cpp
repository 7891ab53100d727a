#include "gpu/emu/graph.hpp"

#include <algorithm>
#include <utility>

#include "gpu/emu/machine.hpp"

namespace vmem::emu {
namespace {

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};

// One end of a copy with rows.
struct End {
  CUmemorytype type;
  std::uint64_t base;
  std::size_t x_bytes, y, z, pitch, height;

  std::uint64_t row(std::size_t slice, std::size_t line) const {
    return base + ((z + slice) * height + y + line) * pitch + x_bytes;
  }
  bool known() const {
    return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
  }
};

End target_of(const CUDA_MEMCPY3D& p) {
  const bool host = p.dstMemoryType == CU_MEMORYTYPE_HOST;
  return {p.dstMemoryType, host ? reinterpret_cast<std::uint64_t>(p.dstHost) : p.dstDevice,
          p.dstXInBytes,   p.dstY,
          p.dstZ,          p.dstPitch,
          p.dstHeight};
}

End source_of(const CUDA_MEMCPY3D& p) {
  const bool host = p.srcMemoryType == CU_MEMORYTYPE_HOST;
  return {p.srcMemoryType, host ? reinterpret_cast<std::uint64_t>(p.srcHost) : p.srcDevice,
          p.srcXInBytes,   p.srcY,
          p.srcZ,          p.srcPitch,
          p.srcHeight};
}

// Whether a node may name this memory. Memory of type DEVICE must be mapped or pinned when the node
// is made. An unmapped address of type UNIFIED counts as host memory.
bool names_memory(CUmemorytype type, std::uint64_t address, std::size_t bytes, int device, Access wanted) {
  AddressSpace& space = machine().addresses();
  if (type == CU_MEMORYTYPE_HOST) return true;
  if (!space.contains(address)) return type == CU_MEMORYTYPE_UNIFIED || reach_of(address) == Reach::pinned;
  if (type == CU_MEMORYTYPE_UNIFIED && !space.find(address)) return true;
  return space.accessible(address, bytes, device, wanted);
}

std::size_t row_bytes(const CUDA_MEMSET_NODE_PARAMS& p) { return p.width * p.elementSize; }
std::size_t stride_of(const CUDA_MEMSET_NODE_PARAMS& p) { return p.height == 1 ? row_bytes(p) : p.pitch; }

bool names_memory(const MemsetWork& fill) {
  const CUDA_MEMSET_NODE_PARAMS& p = fill.parameters;
  const std::size_t bytes = (p.height - 1) * stride_of(p) + row_bytes(p);
  return names_memory(CU_MEMORYTYPE_DEVICE, p.dst, bytes, fill.context->device().ordinal, Access::read_write);
}

std::shared_ptr<Context> context_or_current(CUcontext handle) {
  if (!handle && cuCtxGetCurrent(&handle) != CUDA_SUCCESS) return nullptr;
  return machine().contexts.find(handle);
}

bool is_one_row(const CUDA_MEMCPY3D& p) { return p.Height == 1 && p.Depth == 1; }

bool fail_update(CUgraphExecUpdateResultInfo& info, CUgraphExecUpdateResult result, CUgraphNode node,
                 CUgraphNode from = nullptr) {
  info = {result, node, from};
  return false;
}

// For updates, which may change more than calls that set a node's parameters.
CUgraphExecUpdateResult check_change(const NodeWork& before, const NodeWork& after) {
  if (before.index() != after.index()) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
  if (const auto* kernel = std::get_if<KernelWork>(&before))
    return kernel->context == std::get<KernelWork>(after).context
               ? CU_GRAPH_EXEC_UPDATE_SUCCESS
               : CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
  if (const auto* copy = std::get_if<MemcpyWork>(&before)) {
    const CUDA_MEMCPY3D &old = copy->parameters, &fresh = std::get<MemcpyWork>(after).parameters;
    const bool same_types = old.srcMemoryType == fresh.srcMemoryType && old.dstMemoryType == fresh.dstMemoryType;
    return same_types ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
  }
  if (const auto* fill = std::get_if<MemsetWork>(&before)) {
    const MemsetWork& fresh = std::get<MemsetWork>(after);
    const CUDA_MEMSET_NODE_PARAMS &p = fill->parameters, &q = fresh.parameters;
    if (p.height != q.height) return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    if (p.height > 1 && (p.width != q.width || p.pitch != q.pitch || p.elementSize != q.elementSize))
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    // Like the driver, this checks a fill's memory again, but not a copy's.
    if (!names_memory(fresh)) return CU_GRAPH_EXEC_UPDATE_ERROR;
  }
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

}  // namespace

CUgraphNodeType type_of(const NodeWork& work) {
  return std::visit(Overloaded{[](const EmptyWork&) { return CU_GRAPH_NODE_TYPE_EMPTY; },
                               [](const KernelWork&) { return CU_GRAPH_NODE_TYPE_KERNEL; },
                               [](const MemcpyWork&) { return CU_GRAPH_NODE_TYPE_MEMCPY; },
                               [](const MemsetWork&) { return CU_GRAPH_NODE_TYPE_MEMSET; },
                               [](const HostWork&) { return CU_GRAPH_NODE_TYPE_HOST; },
                               [](const ChildGraphWork&) { return CU_GRAPH_NODE_TYPE_GRAPH; }},
                    work);
}

CUresult usable(const NodeWork& work) {
  return std::visit(
      [](const auto& each) {
        if constexpr (requires { each.context; })
          return each.context->usable();
        else
          return CUDA_SUCCESS;
      },
      work);
}

void run(const NodeWork& work) {
  std::visit(Overloaded{[](const EmptyWork&) {}, [](const ChildGraphWork&) {},
                        [](const KernelWork& kernel) { kernel.launch->run(kernel.context->device().ordinal); },
                        [](const MemcpyWork& copy) {
                          // The rows of one copy share its fixed cost.
                          FixedCost fixed_cost = FixedCost::charged;
                          for (const Transfer& transfer : copy.transfers)
                            run_transfer(*copy.context, transfer, std::exchange(fixed_cost, FixedCost::waived));
                        },
                        [](const MemsetWork& fill) {
                          const CUDA_MEMSET_NODE_PARAMS& p = fill.parameters;
                          for (std::size_t row = 0; row < p.height; ++row)
                            run_fill(*fill.context, p.dst + row * stride_of(p), p.value, p.elementSize, row_bytes(p));
                        },
                        [](const HostWork& host) { host.function(host.argument); }},
             work);
}

CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& p, NodeWork& work) {
  const auto function = machine().functions.find(p.func);
  const auto library_kernel = p.func ? nullptr : machine().kernels.find(p.kern);
  if (!function && !library_kernel) return CUDA_ERROR_INVALID_VALUE;
  // A library's kernel belongs to no context.
  const auto context = function ? function->context : context_or_current(p.ctx);
  if (!context) return CUDA_ERROR_INVALID_CONTEXT;
  vmem_emu_launch shape{
      {p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}, p.sharedMemBytes, nullptr, 0};
  if (!valid_shape(shape)) return CUDA_ERROR_INVALID_VALUE;
  auto launch = Launch::make(function ? function->kernel : library_kernel->kernel, p.kernelParams, p.extra);
  if (!launch) return CUDA_ERROR_INVALID_VALUE;
  launch->shape = shape;
  const CUfunction named = function ? p.func : reinterpret_cast<CUfunction>(p.kern);
  work = KernelWork{named, context, std::move(launch)};
  return CUDA_SUCCESS;
}

CUresult make_memcpy(const CUDA_MEMCPY3D& p, CUcontext handle, NodeWork& work) {
  MemcpyWork copy{context_or_current(handle), p, {}};
  if (!copy.context) return CUDA_ERROR_INVALID_CONTEXT;
  const End target = target_of(p), source = source_of(p);
  if (!target.known() || !source.known()) return CUDA_ERROR_INVALID_VALUE;
  if (p.WidthInBytes == 0 || p.Height == 0 || p.Depth == 0 || target.base == 0 || source.base == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (const End& end : {target, source}) {
    if (p.Height * p.Depth > 1 && end.pitch < p.WidthInBytes) return CUDA_ERROR_INVALID_VALUE;
    if (p.Depth > 1 && end.height < p.Height) return CUDA_ERROR_INVALID_VALUE;
  }
  const int device = copy.context->device().ordinal;
  for (std::size_t slice = 0; slice < p.Depth; ++slice) {
    for (std::size_t line = 0; line < p.Height; ++line) {
      const Transfer row{target.row(slice, line), source.row(slice, line), p.WidthInBytes, device, device};
      if (!names_memory(target.type, row.target, row.bytes, device, Access::read_write) ||
          !names_memory(source.type, row.source, row.bytes, device, Access::read))
        return CUDA_ERROR_INVALID_VALUE;
      copy.transfers.push_back(row);
    }
  }
  work = std::move(copy);
  return CUDA_SUCCESS;
}

CUresult make_memset(const CUDA_MEMSET_NODE_PARAMS& p, CUcontext handle, NodeWork& work) {
  MemsetWork fill{context_or_current(handle), p};
  if (!fill.context) return CUDA_ERROR_INVALID_CONTEXT;
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
  if (p.dst == 0 || p.dst % p.elementSize != 0 || p.width == 0 || p.height == 0) return CUDA_ERROR_INVALID_VALUE;
  if (row_bytes(p) / p.elementSize != p.width) return CUDA_ERROR_INVALID_VALUE;
  if (p.height > 1 && (p.pitch < row_bytes(p) || p.pitch % p.elementSize != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (!names_memory(fill)) return CUDA_ERROR_INVALID_VALUE;
  work = std::move(fill);
  return CUDA_SUCCESS;
}

NodeWork make_child(const Graph& graph) {
  ChildGraphWork child{graph.clone(), nullptr};
  child.graph->owned = true;
  child.handle = machine().graphs.insert(child.graph);
  return child;
}

CUresult find_nodes(const Graph& graph, const CUgraphNode* handles, const CUgraphEdgeData* edges, std::size_t count,
                    std::vector<Node*>& nodes) {
  if (count > 0 && !handles) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const auto node = machine().nodes.find(handles[i]);
    if (!node || node->graph != &graph || contains(nodes, node.get())) return CUDA_ERROR_INVALID_VALUE;
    nodes.push_back(node.get());
    if (edges &&
        (edges[i].from_port != 0 || edges[i].to_port != 0 || edges[i].type != CU_GRAPH_DEPENDENCY_TYPE_DEFAULT))
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// As the driver reports them: a single row has no pitch.
MemcpyWork captured_memcpy(const std::shared_ptr<Context>& context, const Transfer& transfer, CUmemorytype target,
                           CUmemorytype source) {
  MemcpyWork copy{context, {}, {transfer}};
  CUDA_MEMCPY3D& p = copy.parameters;
  p.dstMemoryType = target;
  p.srcMemoryType = source;
  if (target == CU_MEMORYTYPE_HOST)
    p.dstHost = reinterpret_cast<void*>(transfer.target);
  else
    p.dstDevice = transfer.target;
  if (source == CU_MEMORYTYPE_HOST)
    p.srcHost = reinterpret_cast<const void*>(transfer.source);
  else
    p.srcDevice = transfer.source;
  p.WidthInBytes = transfer.bytes;
  p.Height = p.Depth = 1;
  return copy;
}

MemsetWork captured_memset(const std::shared_ptr<Context>& context, std::uint64_t target, std::uint32_t value,
                           unsigned value_bytes, std::size_t count) {
  return {context, {target, 0, value, value_bytes, count, 1}};
}

Graph::~Graph() {
  for (const auto& node : nodes_) {
    machine().nodes.erase(node->handle);
    if (const auto* child = std::get_if<ChildGraphWork>(&node->work)) machine().graphs.erase(child->handle);
  }
}

Node& Graph::add(NodeWork work, std::vector<Node*> dependencies) {
  auto node = std::make_shared<Node>(Node{this, nullptr, std::move(work), std::move(dependencies)});
  node->handle = machine().nodes.insert(node);
  return *nodes_.emplace_back(std::move(node));
}

std::shared_ptr<Graph> Graph::clone() const {
  auto copy = std::make_shared<Graph>();
  for (const auto& node : nodes_) {
    const auto* child = std::get_if<ChildGraphWork>(&node->work);
    copy->add(child ? make_child(*child->graph) : node->work, {});
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i)
    for (const Node* dependency : nodes_[i]->dependencies)
      copy->nodes_[i]->dependencies.push_back(copy->nodes_[index_of(dependency)].get());
  return copy;
}

std::size_t Graph::index_of(const Node* node) const {
  const auto found = std::ranges::find(nodes_, node, [](const auto& each) { return each.get(); });
  return static_cast<std::size_t>(found - nodes_.begin());
}

CUresult ExecutableGraph::build(const Graph& graph, CUgraphNode& offender, CUgraphInstantiateResult& reason) {
  std::vector<std::size_t> missing;  // dependencies not yet in `order`
  for (const auto& node : graph.nodes()) {
    Entry& entry = entries.emplace_back();
    entry.node = node->handle;
    for (const Node* dependency : node->dependencies) entry.dependencies.push_back(graph.index_of(dependency));
    missing.push_back(entry.dependencies.size());
    const auto* child = std::get_if<ChildGraphWork>(&node->work);
    entry.work = child ? ChildGraphWork{} : node->work;
    if (child) {
      entry.child = std::make_unique<ExecutableGraph>();
      if (const CUresult result = entry.child->build(*child->graph, offender, reason); result != CUDA_SUCCESS)
        return result;
    }
    // Fills are checked again; copies are not.
    const auto* fill = std::get_if<MemsetWork>(&entry.work);
    if (fill && !names_memory(*fill)) {
      reason = CUDA_GRAPH_INSTANTIATE_ERROR;
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (std::size_t i = 0; i < entries.size(); ++i)
    if (missing[i] == 0) order.push_back(i);
  for (std::size_t done = 0; done < order.size(); ++done)
    for (std::size_t i = 0; i < entries.size(); ++i)
      if (contains(entries[i].dependencies, order[done]) && --missing[i] == 0) order.push_back(i);
  if (order.size() == entries.size()) return CUDA_SUCCESS;
  const auto cyclic = std::ranges::find_if(missing, [](std::size_t count) { return count > 0; });
  offender = entries[static_cast<std::size_t>(cyclic - missing.begin())].node;
  reason = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  return CUDA_ERROR_INVALID_VALUE;
}

ExecutableGraph::Entry* ExecutableGraph::find(CUgraphNode node) {
  for (Entry& entry : entries) {
    if (entry.node == node) return &entry;
    if (Entry* found = entry.child ? entry.child->find(node) : nullptr) return found;
  }
  return nullptr;
}

// Pairs nodes in insertion order, and dependencies in the order of the edges.
bool ExecutableGraph::check_update(const Graph& graph, CUgraphExecUpdateResultInfo& info) const {
  if (graph.nodes().size() != entries.size())
    return fail_update(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const Node& node = *graph.nodes()[i];
    if (node.dependencies.size() != entry.dependencies.size())
      return fail_update(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node.handle);
    for (std::size_t edge = 0; edge < entry.dependencies.size(); ++edge)
      if (graph.index_of(node.dependencies[edge]) != entry.dependencies[edge])
        return fail_update(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, node.handle,
                           node.dependencies[edge]->handle);
    const CUgraphExecUpdateResult change = check_change(entry.work, node.work);
    if (change != CU_GRAPH_EXEC_UPDATE_SUCCESS) return fail_update(info, change, node.handle);
    if (entry.child && !entry.child->check_update(*std::get<ChildGraphWork>(node.work).graph, info)) return false;
  }
  return true;
}

void ExecutableGraph::apply_update(const Graph& graph) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const NodeWork& work = graph.nodes()[i]->work;
    if (entries[i].child)
      entries[i].child->apply_update(*std::get<ChildGraphWork>(work).graph);
    else
      entries[i].work = work;
  }
}

bool ExecutableGraph::update(const Graph& graph, CUgraphExecUpdateResultInfo& info) {
  info = {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
  if (!check_update(graph, info)) return false;
  apply_update(graph);
  return true;
}

CUresult ExecutableGraph::usable() const {
  for (const Entry& entry : entries) {
    const CUresult result = entry.child ? entry.child->usable() : emu::usable(entry.work);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

void ExecutableGraph::append_work(std::vector<NodeWork>& all) const {
  for (const std::size_t index : order) {
    if (entries[index].child)
      entries[index].child->append_work(all);
    else
      all.push_back(entries[index].work);
  }
}

bool may_become(const NodeWork& before, const NodeWork& after) {
  if (check_change(before, after) != CU_GRAPH_EXEC_UPDATE_SUCCESS) return false;
  const auto* copy = std::get_if<MemcpyWork>(&before);
  return !copy || (is_one_row(copy->parameters) && is_one_row(std::get<MemcpyWork>(after).parameters));
}

}  // namespace vmem::emu
