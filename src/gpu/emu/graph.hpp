// Graphs, their nodes, and executables made from them. A node copies its parameters; an executable
// copies its graph's nodes. As with the driver, calls on the same graph or node do not run
// concurrently. Captures add nodes under the captures' lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <variant>
#include <vector>

#include "gpu/emu/copies.hpp"
#include "gpu/emu/cuda_api.hpp"
#include "gpu/emu/kernels.hpp"
#include "gpu/emu/stream.hpp"

namespace vmem::emu {

template <class T>
bool contains(const std::vector<T>& all, const std::type_identity_t<T>& one) {
  return std::ranges::find(all, one) != all.end();
}

class Context;
class Graph;
struct Node;

struct EmptyWork {};

struct KernelWork {
  CUfunction handle = nullptr;  // as given by the program
  std::shared_ptr<Context> context;
  std::shared_ptr<const Launch> launch;
};

struct MemcpyWork {
  std::shared_ptr<Context> context;
  CUDA_MEMCPY3D parameters{};
  std::vector<Transfer> transfers;  // one per row of `parameters`
};

struct MemsetWork {
  std::shared_ptr<Context> context;
  CUDA_MEMSET_NODE_PARAMS parameters{};
};

struct HostWork {
  CUhostFn function = nullptr;
  void* argument = nullptr;
};

struct ChildGraphWork {
  std::shared_ptr<Graph> graph;
  CUgraph handle = nullptr;
};

using NodeWork = std::variant<EmptyWork, KernelWork, MemcpyWork, MemsetWork, HostWork, ChildGraphWork>;

CUgraphNodeType type_of(const NodeWork& work);
// CUDA_SUCCESS, or the result of every call that uses the node's context.
CUresult usable(const NodeWork& work);
// Runs on a stream's worker. Does nothing for a child graph: append_work lists its nodes.
void run(const NodeWork& work);

// Make a node's work from its parameters. A null context stands for the current context.
CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& parameters, NodeWork& work);
CUresult make_memcpy(const CUDA_MEMCPY3D& parameters, CUcontext context, NodeWork& work);
CUresult make_memset(const CUDA_MEMSET_NODE_PARAMS& parameters, CUcontext context, NodeWork& work);
NodeWork make_child(const Graph& graph);  // owns a copy of `graph`

// Appends the graph's nodes with these handles. INVALID_VALUE: a handle is unknown or repeated.
// NOT_SUPPORTED: an edge is not a dependency on a whole node.
CUresult find_nodes(const Graph& graph, const CUgraphNode* handles, const CUgraphEdgeData* edges, std::size_t count,
                    std::vector<Node*>& nodes);

// The node's work for a copy or fill captured on a stream.
MemcpyWork captured_memcpy(const std::shared_ptr<Context>& context, const Transfer& transfer, CUmemorytype target,
                           CUmemorytype source);
MemsetWork captured_memset(const std::shared_ptr<Context>& context, std::uint64_t target, std::uint32_t value,
                           unsigned value_bytes, std::size_t count);

struct Node {
  Graph* graph = nullptr;
  CUgraphNode handle = nullptr;
  NodeWork work;
  std::vector<Node*> dependencies;
};

class Graph {
 public:
  Graph() = default;
  ~Graph();  // erases the handles of its nodes and child graphs
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Node& add(NodeWork work, std::vector<Node*> dependencies);
  std::shared_ptr<Graph> clone() const;
  // In insertion order.
  const std::vector<std::shared_ptr<Node>>& nodes() const { return nodes_; }
  std::size_t index_of(const Node* node) const;

  std::atomic<bool> owned{false};      // by a child graph node, which alone destroys it
  std::atomic<bool> capturing{false};  // a capture adds to it

 private:
  std::vector<std::shared_ptr<Node>> nodes_;
};

// An executable's copy of one graph.
struct ExecutableGraph {
  struct Entry {
    CUgraphNode node = nullptr;  // the source node
    NodeWork work;               // an empty ChildGraphWork for a child graph
    std::vector<std::size_t> dependencies;
    std::unique_ptr<ExecutableGraph> child;
  };
  std::vector<Entry> entries;      // in the order of insertion
  std::vector<std::size_t> order;  // a topological order

  // INVALID_VALUE: the nodes form a cycle (`offender` is in it or depends on it), or a fill's
  // memory is not mapped.
  CUresult build(const Graph& graph, CUgraphNode& offender, CUgraphInstantiateResult& reason);
  Entry* find(CUgraphNode node);  // in child graphs too
  // Updates all or nothing. False: the graph differs by more than an update may change.
  bool update(const Graph& graph, CUgraphExecUpdateResultInfo& info);
  CUresult usable() const;
  void append_work(std::vector<NodeWork>& all) const;  // in `order`

 private:
  bool check_update(const Graph& graph, CUgraphExecUpdateResultInfo& info) const;
  void apply_update(const Graph& graph);
};

// True if an executable's node may change from `before` to `after`.
bool may_become(const NodeWork& before, const NodeWork& after);

struct Executable {
  std::mutex mutex;  // protects the members below; taken before the contexts'
  ExecutableGraph root;
  cuuint64_t flags = 0;
  Fence last_launch;
};

}  // namespace vmem::emu
