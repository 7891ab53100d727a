// Graphs: the memory of their nodes is resident at every launch. The runs have 64 MiB of HBM;
// between launches other work evicts everything.
#include <algorithm>
#include <atomic>
#include <thread>

#include "intercept/program.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kBytes = 16 * kMiB, kWords = kBytes / sizeof(unsigned);

CUDA_MEMCPY3D linear_copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  CUDA_MEMCPY3D copy{};
  copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.srcDevice = from;
  copy.dstDevice = to;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

CUDA_MEMSET_NODE_PARAMS linear_fill(CUdeviceptr to, unsigned value, std::size_t words) {
  return {to, 0, value, sizeof(unsigned), words, 1};
}

// Three buffers for graphs, and a crowd of others that fills HBM in between.
struct Fixture {
  const Machine machine;
  const CUfunction add = machine.function("add");
  CUstream stream = nullptr;
  std::vector<CUdeviceptr> at, crowd;
  std::size_t words = kWords;

  explicit Fixture(std::size_t buffers = 3) : at(buffers), crowd(5) {
    CALL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (std::vector<CUdeviceptr>* group : {&at, &crowd}) {
      for (CUdeviceptr& each : *group) {
        CALL(cuMemAllocAsync(&each, kBytes, stream));
        CALL(cuMemsetD32Async(each, 0, kWords, stream));
      }
    }
  }
  // Uses more than HBM holds, which evicts all other pages.
  void evict() {
    for (CUdeviceptr& each : crowd) launch(add, stream, {&each, &words});
    CALL(cuStreamSynchronize(stream));
  }
  void run(CUgraphExec executable) {
    evict();
    CALL(cuGraphLaunch(executable, stream));
  }
  void require(CUdeviceptr buffer, unsigned value) {
    const auto data = read(buffer, kWords, stream);
    REQUIRE(std::ranges::all_of(data, [&](unsigned word) { return word == value; }));
  }
  CUDA_KERNEL_NODE_PARAMS adding(void** parameters) const {
    return {.func = add,
            .gridDimX = 1,
            .gridDimY = 1,
            .gridDimZ = 1,
            .blockDimX = 1,
            .blockDimY = 1,
            .blockDimZ = 1,
            .kernelParams = parameters};
  }
  CUgraphNode add_kernel(CUgraph graph, CUdeviceptr buffer, std::vector<CUgraphNode> after = {}) {
    void* parameters[] = {&buffer, &words};
    const CUDA_KERNEL_NODE_PARAMS kernel = adding(parameters);
    CUgraphNode node = nullptr;
    CALL(cuGraphAddKernelNode(&node, graph, after.data(), after.size(), &kernel));
    return node;
  }
  CUgraphNode add_copy(CUgraph graph, CUdeviceptr to, CUdeviceptr from, std::vector<CUgraphNode> after = {}) {
    const CUDA_MEMCPY3D copy = linear_copy(to, from, kBytes);
    CUgraphNode node = nullptr;
    CALL(cuGraphAddMemcpyNode(&node, graph, after.data(), after.size(), &copy, machine.context));
    return node;
  }
  CUgraphNode add_fill(CUgraph graph, CUdeviceptr to, unsigned value, std::vector<CUgraphNode> after = {}) {
    const CUDA_MEMSET_NODE_PARAMS fill = linear_fill(to, value, kWords);
    CUgraphNode node = nullptr;
    CALL(cuGraphAddMemsetNode(&node, graph, after.data(), after.size(), &fill, machine.context));
    return node;
  }
  static CUgraph create() {
    CUgraph graph = nullptr;
    CALL(cuGraphCreate(&graph, 0));
    return graph;
  }
  // Evicts first, so that the pages named to the driver are not resident when it is told of them.
  CUgraphExec instantiate(CUgraph graph) {
    evict();
    CUgraphExec executable = nullptr;
    CALL(cuGraphInstantiateWithFlags(&executable, graph, 0));
    return executable;
  }
  CUgraph end_capture() const {
    CUgraph graph = nullptr;
    CALL(cuStreamEndCapture(stream, &graph));
    return graph;
  }
  // Each launch increments at[0], copies at[0] to at[1], and sets at[2] to 7 plus 1.
  void record_work() {
    launch(add, stream, {&at[0], &words});
    CALL(cuMemcpyDtoDAsync(at[1], at[0], kBytes, stream));
    CALL(cuMemsetD32Async(at[2], 7, kWords, stream));
    launch(add, stream, {&at[2], &words});
  }
  void require_work(unsigned launches) {
    require(at[0], launches);
    require(at[1], launches);
    require(at[2], 8);
  }
};

CASE(graph_from_a_capture) {
  Fixture f;
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  f.record_work();
  const CUgraph graph = f.end_capture();
  f.require(f.at[0], 0);
  const CUgraphExec executable = f.instantiate(graph);
  CALL(cuGraphDestroy(graph));  // the executable is independent of the graph
  for (int i = 0; i < 4; ++i) f.run(executable);
  f.require_work(4);
  CALL(cuGraphExecDestroy(executable));
}

// Streams that join a capture and are joined again, with work on each that depends on the other.
CASE(graph_from_a_capture_of_two_streams) {
  Fixture f;
  CUstream other = nullptr;
  CUevent fork = nullptr, join = nullptr;
  CALL(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CALL(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
  CALL(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  launch(f.add, f.stream, {&f.at[0], &f.words});
  CALL(cuEventRecord(fork, f.stream));
  CALL(cuStreamWaitEvent(other, fork, CU_EVENT_WAIT_DEFAULT));
  CALL(cuMemcpyDtoDAsync(f.at[1], f.at[0], kBytes, other));
  launch(f.add, other, {&f.at[1], &f.words});
  CALL(cuEventRecord(join, other));
  CALL(cuMemsetD32Async(f.at[2], 3, kWords, f.stream));
  CALL(cuStreamWaitEvent(f.stream, join, CU_EVENT_WAIT_DEFAULT));
  CALL(cuMemcpyDtoDAsync(f.at[2], f.at[1], kBytes, f.stream));
  const CUgraphExec executable = f.instantiate(f.end_capture());
  for (int i = 0; i < 3; ++i) f.run(executable);
  f.require(f.at[0], 3);
  f.require(f.at[1], 4);
  f.require(f.at[2], 4);
}

CASE(graph_of_explicit_nodes) {
  Fixture f;
  const CUgraph graph = Fixture::create();
  const CUgraphNode count = f.add_kernel(graph, f.at[0]);
  f.evict();
  (void)f.add_copy(graph, f.at[1], f.at[0], {count});
  f.evict();
  const CUgraphNode fill = f.add_fill(graph, f.at[2], 7);
  (void)f.add_kernel(graph, f.at[2], {fill});
  const CUgraphExec executable = f.instantiate(graph);
  for (int i = 0; i < 4; ++i) f.run(executable);
  f.require_work(4);
}

// The same with the calls that take any kind of node, and with parameters set before instantiation.
CASE(graph_of_nodes_of_any_kind) {
  Fixture f(4);
  const CUgraph graph = Fixture::create();
  void* parameters[] = {&f.at[0], &f.words};
  const CUDA_KERNEL_NODE_PARAMS adding = f.adding(parameters);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_KERNEL;
  any.kernel.func = adding.func;
  any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = 1;
  any.kernel.blockDimX = any.kernel.blockDimY = any.kernel.blockDimZ = 1;
  any.kernel.kernelParams = parameters;
  CUgraphNode kernel = nullptr, copy = nullptr, fill = nullptr;
  CALL(cuGraphAddNode(&kernel, graph, nullptr, nullptr, 0, &any));
  any = {};
  any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  any.memcpy.copyCtx = f.machine.context;
  any.memcpy.copyParams = linear_copy(f.at[3], f.at[0], kBytes);
  f.evict();
  CALL(cuGraphAddNode(&copy, graph, &kernel, nullptr, 1, &any));
  any.memcpy.copyParams = linear_copy(f.at[1], f.at[0], kBytes);
  f.evict();
  CALL(cuGraphNodeSetParams(copy, &any));
  any = {};
  any.type = CU_GRAPH_NODE_TYPE_MEMSET;
  any.memset = {f.at[3], 0, 6, sizeof(unsigned), kWords, 1, f.machine.context};
  CALL(cuGraphAddNode(&fill, graph, nullptr, nullptr, 0, &any));
  const CUDA_MEMSET_NODE_PARAMS seven = linear_fill(f.at[2], 7, kWords);
  f.evict();
  CALL(cuGraphMemsetNodeSetParams(fill, &seven));
  (void)f.add_kernel(graph, f.at[2], {fill});
  const CUDA_MEMCPY3D same = linear_copy(f.at[1], f.at[0], kBytes);
  f.evict();
  CALL(cuGraphMemcpyNodeSetParams(copy, &same));
  const CUgraphExec executable = f.instantiate(graph);
  for (int i = 0; i < 4; ++i) f.run(executable);
  f.require_work(4);
  f.require(f.at[3], 0);
}

CASE(child_graphs) {
  Fixture f;
  const CUgraph inner = Fixture::create(), middle = Fixture::create(), outer = Fixture::create();
  const CUgraphNode fill = f.add_fill(inner, f.at[2], 7);
  (void)f.add_kernel(inner, f.at[2], {fill});
  CUgraphNode first = nullptr, second = nullptr;
  CALL(cuGraphAddChildGraphNode(&first, middle, nullptr, 0, inner));
  const CUgraphNode count = f.add_kernel(middle, f.at[0], {first});
  (void)f.add_copy(middle, f.at[1], f.at[0], {count});
  CALL(cuGraphAddChildGraphNode(&second, outer, nullptr, 0, middle));
  CALL(cuGraphDestroy(inner));
  CALL(cuGraphDestroy(middle));
  const CUgraphExec executable = f.instantiate(outer);
  for (int i = 0; i < 3; ++i) f.run(executable);
  f.require_work(3);
}

CASE(graph_updated_as_a_whole) {
  Fixture f(6);
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  f.record_work();
  const CUgraphExec executable = f.instantiate(f.end_capture());
  f.run(executable);
  const std::vector<CUdeviceptr> before(f.at.begin(), f.at.begin() + 3);
  std::rotate(f.at.begin(), f.at.begin() + 3, f.at.end());
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  f.record_work();
  const CUgraph other = f.end_capture();
  f.evict();
  CUgraphExecUpdateResultInfo info{};
  CALL(cuGraphExecUpdate(executable, other, &info));
  REQUIRE(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  CALL(cuGraphDestroy(other));
  for (int i = 0; i < 2; ++i) f.run(executable);
  f.require_work(2);
  f.require(before[0], 1);
  f.require(before[1], 1);
  f.require(before[2], 8);
}

// A graph whose three nodes are each switched to another buffer by a different call.
struct Changing : Fixture {
  CUgraph graph = create();
  CUgraphNode kernel = add_kernel(graph, at[0]);
  CUgraphNode copy = add_copy(graph, at[1], at[0], {kernel});
  CUgraphNode fill = add_fill(graph, at[2], 7);
  CUgraphExec executable = instantiate(graph);
  Changing() : Fixture(6) { run(executable); }
  void require_changed() {
    for (int i = 0; i < 2; ++i) run(executable);
    require(at[0], 1);
    require(at[1], 1);
    require(at[2], 7);
    require(at[3], 2);
    require(at[4], 2);
    require(at[5], 9);
  }
};

CASE(graph_nodes_set_one_by_one) {
  Changing f;
  void* parameters[] = {&f.at[3], &f.words};
  const CUDA_KERNEL_NODE_PARAMS kernel = f.adding(parameters);
  CALL(cuGraphExecKernelNodeSetParams(f.executable, f.kernel, &kernel));
  f.evict();
  const CUDA_MEMCPY3D copy = linear_copy(f.at[4], f.at[3], kBytes);
  CALL(cuGraphExecMemcpyNodeSetParams(f.executable, f.copy, &copy, f.machine.context));
  f.evict();
  const CUDA_MEMSET_NODE_PARAMS fill = linear_fill(f.at[5], 9, kWords);
  CALL(cuGraphExecMemsetNodeSetParams(f.executable, f.fill, &fill, f.machine.context));
  f.require_changed();
}

CASE(graph_nodes_set_as_any_kind) {
  Changing f;
  void* parameters[] = {&f.at[3], &f.words};
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_KERNEL;
  any.kernel.func = f.add;
  any.kernel.gridDimX = any.kernel.gridDimY = any.kernel.gridDimZ = 1;
  any.kernel.blockDimX = any.kernel.blockDimY = any.kernel.blockDimZ = 1;
  any.kernel.kernelParams = parameters;
  CALL(cuGraphExecNodeSetParams(f.executable, f.kernel, &any));
  f.evict();
  any = {};
  any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  any.memcpy.copyCtx = f.machine.context;
  any.memcpy.copyParams = linear_copy(f.at[4], f.at[3], kBytes);
  CALL(cuGraphExecNodeSetParams(f.executable, f.copy, &any));
  f.evict();
  any = {};
  any.type = CU_GRAPH_NODE_TYPE_MEMSET;
  any.memset = {f.at[5], 0, 9, sizeof(unsigned), kWords, 1, f.machine.context};
  CALL(cuGraphExecNodeSetParams(f.executable, f.fill, &any));
  f.require_changed();
}

// A child graph is replaced by a graph of other memory, by its own call and by the call for any
// kind of node.
CASE(child_graphs_set) {
  Fixture f(6);
  const CUgraph outer = Fixture::create();
  const auto child_of = [&](std::size_t buffer) {
    const CUgraph inner = Fixture::create();
    const CUgraphNode fill = f.add_fill(inner, f.at[buffer], unsigned(buffer));
    (void)f.add_copy(inner, f.at[buffer + 1], f.at[buffer], {f.add_kernel(inner, f.at[buffer], {fill})});
    return inner;
  };
  CUgraphNode child = nullptr;
  CALL(cuGraphAddChildGraphNode(&child, outer, nullptr, 0, child_of(0)));
  const CUgraphExec executable = f.instantiate(outer);
  f.run(executable);
  const CUgraph second = child_of(2), third = child_of(4);
  f.evict();
  CALL(cuGraphExecChildGraphNodeSetParams(executable, child, second));
  f.run(executable);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_GRAPH;
  any.graph.graph = third;
  f.evict();
  CALL(cuGraphExecNodeSetParams(executable, child, &any));
  f.run(executable);
  for (const unsigned buffer : {0u, 2u, 4u}) {
    f.require(f.at[buffer], buffer + 1);
    f.require(f.at[buffer + 1], buffer + 1);
  }
}

CASE(graph_instantiated_with_parameters) {
  Fixture f;
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  f.record_work();
  const CUgraph graph = f.end_capture();
  f.evict();
  CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
  parameters.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  parameters.hUploadStream = f.stream;
  CUgraphExec executable = nullptr;
  CALL(cuGraphInstantiateWithParams(&executable, graph, &parameters));
  REQUIRE(parameters.result_out == CUDA_GRAPH_INSTANTIATE_SUCCESS);
  for (int i = 0; i < 3; ++i) f.run(executable);
  f.require_work(3);
}

CASE(graph_captured_into_another) {
  Fixture f;
  const CUgraph graph = Fixture::create();
  const CUgraphNode count = f.add_kernel(graph, f.at[0]);
  CALL(cuStreamBeginCaptureToGraph(f.stream, graph, &count, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
  CALL(cuMemcpyDtoDAsync(f.at[1], f.at[0], kBytes, f.stream));
  CALL(cuMemsetD32Async(f.at[2], 7, kWords, f.stream));
  launch(f.add, f.stream, {&f.at[2], &f.words});
  REQUIRE(f.end_capture() == graph);
  const CUgraphExec executable = f.instantiate(graph);
  for (int i = 0; i < 3; ++i) f.run(executable);
  f.require_work(3);
}

// While one stream captures, another uses more memory than HBM holds. vmem's work for the second
// must not end the capture.
CASE(capture_beside_evictions) {
  Fixture f;
  CUstream other = nullptr;
  CALL(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  std::jthread([&] {
    CALL(cuCtxSetCurrent(f.machine.context));
    for (int round = 0; round < 4; ++round)
      for (CUdeviceptr& each : f.crowd) launch(f.add, other, {&each, &f.words});
  }).join();
  f.record_work();
  std::jthread([&] {
    CALL(cuCtxSetCurrent(f.machine.context));
    for (CUdeviceptr& each : f.crowd) launch(f.add, other, {&each, &f.words});
    // The call waits, but only for its own stream: the capture belongs to another thread.
    std::vector<std::uint32_t> ones(f.words, 5);
    CUdeviceptr target = f.crowd.front(), source = reinterpret_cast<CUdeviceptr>(ones.data());
    std::size_t bytes = f.words * 4, first = 0;
    CUmemcpyAttributes at_once{};
    at_once.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
    CALL(cuMemcpyBatchAsync(&target, &source, &bytes, 1, &at_once, &first, 1, other));
  }).join();
  f.record_work();
  const CUgraph graph = f.end_capture();
  CALL(cuStreamSynchronize(other));
  for (CUdeviceptr each : f.crowd) f.require(each, 5);
  const CUgraphExec executable = f.instantiate(graph);
  for (int i = 0; i < 2; ++i) f.run(executable);
  f.require_work(4);
}

void work_as_ever(Fixture& f, CUstream stream) {
  for (int round = 0; round < 2; ++round) {
    f.evict();
    for (CUdeviceptr& each : f.at) launch(f.add, stream, {&each, &f.words});
  }
  CALL(cuStreamSynchronize(stream));
  for (const CUdeviceptr each : f.at) f.require(each, 2);
}

// After a failed capture, launches run and their memory is resident as before.
CASE(capture_that_fails) {
  Fixture f;
  CALL(cuStreamBeginCapture(f.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  f.record_work();
  REQUIRE(cuStreamSynchronize(f.stream) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(f.stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED && graph == nullptr);
  work_as_ever(f, f.stream);
}

CASE(capture_that_ends_with_its_stream) {
  Fixture f;
  CUstream gone = nullptr;
  CALL(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
  // Memory freed in stream order is reused by another allocation.
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB}) {
    CUdeviceptr freed = 0;
    std::size_t words = bytes / 4;
    CALL(cuMemAllocAsync(&freed, bytes, gone));
    launch(f.add, gone, {&freed, &words});
    CALL(cuMemFreeAsync(freed, gone));
  }
  CALL(cuStreamBeginCapture(gone, CU_STREAM_CAPTURE_MODE_RELAXED));
  launch(f.add, gone, {&f.at[0], &f.words});
  REQUIRE(said_by([&] { CALL(cuStreamDestroy(gone)); }).empty());
  for (const std::size_t bytes : {std::size_t{4096}, 3 * kMiB}) {
    std::vector<CUdeviceptr> blocks(40);
    for (CUdeviceptr& block : blocks) CALL(cuMemAllocAsync(&block, bytes, f.stream));
    for (const CUdeviceptr block : blocks) CALL(cuMemFreeAsync(block, f.stream));
  }
  work_as_ever(f, f.stream);
}

}  // namespace
}  // namespace vmem::test
