// Graphs: nodes, what each does and which others come before it, and executables made from them. A node has copies of all its
// parameters, an executable has copies of its graph's nodes. As the driver has it, calls on the same graph or node do not run at the
// same time; a capture adds its nodes under the captures' lock.
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
  CUfunction handle = nullptr;  // as the program named it
  std::shared_ptr<Context> context;
  std::shared_ptr<const Launch> launch;
};

struct MemcpyWork {
  std::shared_ptr<Context> context;
  CUDA_MEMCPY3D parameters{};
  std::vector<Transfer> transfers;  // what that comes to
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
// What a call that uses the node's context must return at once, unless it is CUDA_SUCCESS.
CUresult usable(const NodeWork& work);
// On a stream's worker; a child graph's work is that of its nodes.
void run(const NodeWork& work);

// What a node with these parameters does.
CUresult make_kernel(const CUDA_KERNEL_NODE_PARAMS& parameters, NodeWork& work);
CUresult make_memcpy(const CUDA_MEMCPY3D& parameters, CUcontext context, NodeWork& work);
CUresult make_memset(const CUDA_MEMSET_NODE_PARAMS& parameters, CUcontext context, NodeWork& work);
NodeWork make_child(const Graph& graph);  // of a copy of the graph

// The graph's nodes of these handles, each of which is there once. Every dependency here is on the whole of the node before: other edges
// are refused.
CUresult find_nodes(const Graph& graph, const CUgraphNode* handles, const CUgraphEdgeData* edges, std::size_t count,
                    std::vector<Node*>& nodes);

// What copies and fills on a stream leave in a capture.
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
  ~Graph();  // takes the handles of its nodes and their graphs back
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Node& add(NodeWork work, std::vector<Node*> dependencies);
  std::shared_ptr<Graph> clone() const;
  const std::vector<std::shared_ptr<Node>>& nodes() const { return nodes_; }  // in the order of insertion
  std::size_t index_of(const Node* node) const;

  std::atomic<bool> owned{false};      // by a node, which alone destroys it
  std::atomic<bool> capturing{false};  // a capture adds to it

 private:
  std::vector<std::shared_ptr<Node>> nodes_;
};

// What an executable has of one graph.
struct ExecutableGraph {
  struct Entry {
    CUgraphNode node = nullptr;  // that it was made from
    NodeWork work;               // of a child graph: only that it is one
    std::vector<std::size_t> dependencies;
    std::unique_ptr<ExecutableGraph> child;
  };
  std::vector<Entry> entries;      // in the order of insertion
  std::vector<std::size_t> order;  // one in which no entry comes before its dependencies

  // INVALID_VALUE: the nodes depend on each other, or one fills memory that is not there; `offender` is such a node.
  CUresult build(const Graph& graph, CUgraphNode& offender, CUgraphInstantiateResult& reason);
  Entry* find(CUgraphNode node);  // in child graphs too
  // All or nothing. False: the graph differs by more than an update may change.
  bool update(const Graph& graph, CUgraphExecUpdateResultInfo& info);
  CUresult usable() const;
  void append_work(std::vector<NodeWork>& all) const;  // in order

 private:
  bool check_update(const Graph& graph, CUgraphExecUpdateResultInfo& info) const;
  void apply_update(const Graph& graph);
};

// Whether an executable's node may come to do this instead.
bool may_become(const NodeWork& before, const NodeWork& after);

struct Executable {
  std::mutex mutex;  // protects what follows; before the contexts'
  ExecutableGraph root;
  cuuint64_t flags = 0;
  Fence last_launch;
};

}  // namespace vmem::emu
