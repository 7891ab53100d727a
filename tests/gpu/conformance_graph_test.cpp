// Graphs: when the driver copies parameters, in what order nodes run, and when the driver checks
// memory.
#include <dlfcn.h>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

#define VMEM_TEXT(name) #name
#define VMEM_SYMBOL(name) VMEM_TEXT(name)
// The function of the driver under test.
#define GRAPH(name) reinterpret_cast<decltype(&::name)>(symbol(VMEM_SYMBOL(name)))

class Graphs : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    first.emplace(driver, granularity, device_memory(0, false));
    second.emplace(driver, granularity, device_memory(0, false));
    EXPECT_CU(fill(*first, 1, stream.get()));
    EXPECT_CU(fill(*second, 2, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
    EXPECT_CU(GRAPH(cuGraphCreate)(&graph, 0));
  }
  void TearDown() override {
    (void)cu().cuCtxSynchronize();
    if (executable) {
      EXPECT_CU(GRAPH(cuGraphExecDestroy)(executable));
    }
    if (graph) {
      EXPECT_CU(cu().cuGraphDestroy(graph));
    }
    first.reset();
    second.reset();
    DriverTest::TearDown();
  }
  void* symbol(const char* name) const {
    void* const library = dlopen(driver->path().c_str(), RTLD_NOW | RTLD_NOLOAD);
    void* const found = dlsym(library, name);
    EXPECT_NE(found, nullptr) << name;
    return found;
  }
  CUDA_MEMSET_NODE_PARAMS setting(const Page& page, unsigned value) const {
    return {page.address(), 0, value, 4, page.word_count(), 1};
  }
  CUDA_MEMCPY3D copying(const Page& to, const Page& from) const {
    CUDA_MEMCPY3D copy{};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = from.address();
    copy.dstDevice = to.address();
    copy.WidthInBytes = to.bytes();
    copy.Height = copy.Depth = 1;
    return copy;
  }
  CUgraphNode add_memset(CUgraph to, const Page& page, unsigned value) {
    const CUDA_MEMSET_NODE_PARAMS parameters = setting(page, value);
    CUgraphNode node = nullptr;
    EXPECT_CU(GRAPH(cuGraphAddMemsetNode)(&node, to, nullptr, 0, &parameters, context.context()));
    return node;
  }
  CUgraphNode add_memcpy(CUgraph to, const Page& target, const Page& source) {
    const CUDA_MEMCPY3D parameters = copying(target, source);
    CUgraphNode node = nullptr;
    EXPECT_CU(GRAPH(cuGraphAddMemcpyNode)(&node, to, nullptr, 0, &parameters, context.context()));
    return node;
  }
  // Adds `delta` to the page's words.
  CUgraphNode add_kernel(CUgraph to, const Page& page, std::uint32_t delta) {
    std::uint32_t* words = page.words();
    std::uint64_t count = page.word_count();
    void* pointers[] = {&words, &delta, &count};
    const CUDA_KERNEL_NODE_PARAMS parameters = adding(pointers);
    CUgraphNode node = nullptr;
    EXPECT_CU(GRAPH(cuGraphAddKernelNode)(&node, to, nullptr, 0, &parameters));
    delta = 1000;  // the node has a copy
    return node;
  }
  CUDA_KERNEL_NODE_PARAMS adding(void** pointers) const {
    CUDA_KERNEL_NODE_PARAMS parameters{};
    parameters.func = kernel("add_words");
    parameters.gridDimX = parameters.gridDimY = parameters.gridDimZ = 1;
    parameters.blockDimX = 128;
    parameters.blockDimY = parameters.blockDimZ = 1;
    parameters.kernelParams = pointers;
    return parameters;
  }
  CUresult depend(CUgraphNode from, CUgraphNode to) {
    return GRAPH(cuGraphAddDependencies)(graph, &from, &to, nullptr, 1);
  }
  CUresult instantiate() { return GRAPH(cuGraphInstantiateWithFlags)(&executable, graph, 0); }
  void run(int times = 1) {
    for (int i = 0; i < times; ++i) EXPECT_CU(GRAPH(cuGraphLaunch)(executable, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  }
  void capture_into_graph() {
    EXPECT_CU(cu().cuGraphDestroy(graph));
    graph = nullptr;
    EXPECT_CU(cu().cuStreamEndCapture(stream.get(), &graph));
  }
  void unmap(const Page& page) { EXPECT_CU(cu().cuMemUnmap(page.address(), page.bytes())); }
  void map(const Page& page) {
    EXPECT_CU(cu().cuMemMap(page.address(), page.bytes(), 0, page.handle().get(), 0));
    EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  }

  std::optional<Page> first, second;
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
};

TEST_F(Graphs, CapturedWorkRunsInTheStreamsOrderAtEachLaunch) {
  ASSERT_CU(cu().cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_RELAXED));
  std::uint32_t delta = 5;
  EXPECT_CU(
      launch(driver, kernel("add_words"), stream.get(), first->words(), delta, std::uint64_t{first->word_count()}));
  EXPECT_CU(cu().cuMemcpyDtoDAsync(second->address(), first->address(), first->bytes(), stream.get()));
  EXPECT_CU(cu().cuMemsetD32Async(first->address(), 3, first->word_count(), stream.get()));
  capture_into_graph();
  ASSERT_CU(instantiate());
  EXPECT_TRUE(holds(*first, 1)) << "instantiating runs nothing";
  run();
  EXPECT_TRUE(holds(*second, 6));
  run();
  EXPECT_TRUE(holds(*second, 8));
  EXPECT_TRUE(holds(*first, 3));
}

TEST_F(Graphs, ACaptureLeavesNodesWithTheParametersOfItsCalls) {
  std::uint32_t word = 0;
  ASSERT_CU(cu().cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CU(cu().cuMemcpyDtoDAsync(second->address(), first->address(), 512, stream.get()));
  EXPECT_CU(cu().cuMemcpyHtoDAsync(first->address(), &word, 4, stream.get()));
  EXPECT_CU(cu().cuMemcpyAsync(first->address(), second->address(), 64, stream.get()));
  EXPECT_CU(cu().cuMemsetD16Async(first->address(), 3, 5, stream.get()));
  capture_into_graph();
  std::size_t count = 9;
  CUgraphNode nodes[9] = {};
  EXPECT_CU(GRAPH(cuGraphGetNodes)(graph, nodes, &count));
  ASSERT_EQ(count, 4);
  EXPECT_EQ(nodes[4], nullptr);
  const CUmemorytype types[3][2] = {{CU_MEMORYTYPE_DEVICE, CU_MEMORYTYPE_DEVICE},
                                    {CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE},
                                    {CU_MEMORYTYPE_UNIFIED, CU_MEMORYTYPE_UNIFIED}};
  for (std::size_t i = 0; i < 3; ++i) {
    CUDA_MEMCPY3D copy{};
    ASSERT_CU(GRAPH(cuGraphMemcpyNodeGetParams)(nodes[i], &copy));
    EXPECT_EQ(copy.srcMemoryType, types[i][0]);
    EXPECT_EQ(copy.dstMemoryType, types[i][1]);
    EXPECT_EQ(copy.Height * copy.Depth, 1);
  }
  CUgraphNodeType type{};
  EXPECT_CU(GRAPH(cuGraphNodeGetType)(nodes[3], &type));
  EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_MEMSET);
  CUDA_MEMSET_NODE_PARAMS set{};
  EXPECT_CU(GRAPH(cuGraphMemsetNodeGetParams)(nodes[3], &set));
  EXPECT_EQ(set.elementSize, 2);
  EXPECT_EQ(set.width, 5);
  EXPECT_EQ(set.height, 1);
  EXPECT_EQ(set.value, 3);
}

TEST_F(Graphs, DependenciesOrderNodesWhateverTheOrderOfTheirInsertion) {
  const CUgraphNode copy = add_memcpy(graph, *second, *first);
  const CUgraphNode add = add_kernel(graph, *first, 4);
  const CUgraphNode set = add_memset(graph, *first, 10);
  EXPECT_CU(depend(add, copy));
  EXPECT_CU(depend(set, add));
  EXPECT_EQ(depend(set, add), CUDA_ERROR_INVALID_VALUE) << "it is there already";
  ASSERT_CU(instantiate());
  run(2);
  EXPECT_TRUE(holds(*second, 14));
}

TEST_F(Graphs, NodesThatWaitForEachOtherCannotBeInstantiated) {
  const CUgraphNode one = add_memset(graph, *first, 1), other = add_memset(graph, *second, 1);
  EXPECT_CU(depend(one, other));
  EXPECT_CU(depend(other, one));
  EXPECT_EQ(instantiate(), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Graphs, AnExecutableIsIndependentOfItsGraph) {
  const CUgraphNode add = add_kernel(graph, *first, 4);
  ASSERT_CU(instantiate());
  std::uint32_t* words = second->words();
  std::uint32_t delta = 9;
  std::uint64_t count = second->word_count();
  void* pointers[] = {&words, &delta, &count};
  const CUDA_KERNEL_NODE_PARAMS parameters = adding(pointers);
  EXPECT_CU(GRAPH(cuGraphKernelNodeSetParams)(add, &parameters));
  run();
  EXPECT_TRUE(holds(*first, 5));
  EXPECT_CU(GRAPH(cuGraphExecKernelNodeSetParams)(executable, add, &parameters));
  EXPECT_CU(cu().cuGraphDestroy(graph));
  graph = nullptr;
  run();
  EXPECT_TRUE(holds(*first, 5));
  EXPECT_TRUE(holds(*second, 11));
}

TEST_F(Graphs, AChildGraphIsCopiedWhenItIsAdded) {
  CUgraph child = nullptr;
  ASSERT_CU(GRAPH(cuGraphCreate)(&child, 0));
  (void)add_kernel(child, *first, 4);
  CUgraphNode node = nullptr;
  EXPECT_CU(GRAPH(cuGraphAddChildGraphNode)(&node, graph, nullptr, 0, child));
  (void)add_kernel(child, *second, 4);
  EXPECT_CU(cu().cuGraphDestroy(child));
  CUgraph inside = nullptr;
  EXPECT_CU(GRAPH(cuGraphChildGraphNodeGetGraph)(node, &inside));
  std::size_t count = 0;
  EXPECT_CU(GRAPH(cuGraphGetNodes)(inside, nullptr, &count));
  EXPECT_EQ(count, 1);
  ASSERT_CU(instantiate());
  run();
  EXPECT_TRUE(holds(*first, 5));
  EXPECT_TRUE(holds(*second, 2));
}

TEST_F(Graphs, AnUpdateNeedsTheSameTopologyAndKinds) {
  (void)add_memset(graph, *first, 7);
  ASSERT_CU(instantiate());
  CUgraph other = nullptr;
  ASSERT_CU(GRAPH(cuGraphCreate)(&other, 0));
  (void)add_kernel(other, *first, 1);
  CUgraphExecUpdateResultInfo info{};
  EXPECT_EQ(GRAPH(cuGraphExecUpdate)(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED);
  (void)add_kernel(other, *first, 1);
  EXPECT_EQ(GRAPH(cuGraphExecUpdate)(executable, other, &info), CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
  EXPECT_EQ(info.result, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED);
  EXPECT_CU(cu().cuGraphDestroy(other));
  run();
  EXPECT_TRUE(holds(*first, 7));
}

// Memory that a node names must be mapped when the node is described. Instantiation checks it again
// for a fill, not for a copy.
TEST_F(Graphs, TheDriverLooksForTheMemoryOfCopiesAndFills) {
  const CUgraphNode copy = add_memcpy(graph, *second, *first);
  unmap(*first);
  const CUDA_MEMCPY3D same = copying(*second, *first);
  const CUDA_MEMSET_NODE_PARAMS set = setting(*first, 7);
  CUgraphNode node = nullptr;
  EXPECT_EQ(GRAPH(cuGraphAddMemcpyNode)(&node, graph, nullptr, 0, &same, context.context()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(GRAPH(cuGraphAddMemsetNode)(&node, graph, nullptr, 0, &set, context.context()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(GRAPH(cuGraphMemcpyNodeSetParams)(copy, &same), CUDA_ERROR_INVALID_VALUE);
  ASSERT_CU(instantiate());
  EXPECT_EQ(GRAPH(cuGraphExecMemcpyNodeSetParams)(executable, copy, &same, context.context()),
            CUDA_ERROR_INVALID_VALUE);
  map(*first);
  run();
  EXPECT_TRUE(holds(*second, 1));
  (void)add_memset(graph, *first, 7);
  unmap(*first);
  CUgraphExec none = nullptr;
  EXPECT_EQ(GRAPH(cuGraphInstantiateWithFlags)(&none, graph, 0), CUDA_ERROR_INVALID_VALUE);
  map(*first);
}

TEST_F(Graphs, AGraphsLaunchEndsACapture) {
  (void)add_memset(graph, *first, 7);
  ASSERT_CU(instantiate());
  ASSERT_CU(cu().cuStreamBeginCapture(stream.get(), CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(GRAPH(cuGraphLaunch)(executable, stream.get()), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph none = nullptr;
  EXPECT_EQ(cu().cuStreamEndCapture(stream.get(), &none), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(Graphs, ACaptureGoesOnInAGraphThatIsThere) {
  const CUgraphNode set = add_memset(graph, *first, 10);
  ASSERT_CU(GRAPH(cuStreamBeginCaptureToGraph)(stream.get(), graph, &set, nullptr, 1, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_CU(cu().cuMemcpyDtoDAsync(second->address(), first->address(), first->bytes(), stream.get()));
  CUgraph same = nullptr;
  EXPECT_CU(cu().cuStreamEndCapture(stream.get(), &same));
  EXPECT_EQ(same, graph);
  ASSERT_CU(instantiate());
  run();
  EXPECT_TRUE(holds(*second, 10));
}

}  // namespace
}  // namespace vmem::gpu
