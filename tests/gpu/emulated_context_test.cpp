// Contexts end, and calls on their former objects report it.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class Contexts : public DriverTest {
 protected:
  Contexts() : DriverTest(emulated_driver("")) {}
  bool is_active() {
    unsigned context_flags = 0;
    int active = -1;
    EXPECT_CU(cu().cuDevicePrimaryCtxGetState(0, &context_flags, &active));
    return active == 1;
  }
  template <class Function>
  Function symbol(const char* name) const {
    void* const found = dlsym(dlopen(driver->path().c_str(), RTLD_NOW | RTLD_NOLOAD), name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Function>(found);
  }
};

class ContextsOfTwoDevices : public DriverTest {
 protected:
  ContextsOfTwoDevices() : DriverTest(emulated_driver("devices=2")) {}
};

TEST_F(Contexts, AResetEndsTheContextForEverybody) {
  const Event event = must(Event::create(driver));
  CUdeviceptr address = 0;
  ASSERT_CU(cu().cuMemAlloc(&address, 4096));
  ASSERT_CU(cu().cuDevicePrimaryCtxReset(0));
  EXPECT_FALSE(is_active());
  EXPECT_EQ(cu().cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cu().cuStreamSynchronize(stream.get()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu().cuEventQuery(event.get()), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu().cuMemFree(address), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  EXPECT_EQ(cu().cuCtxSetCurrent(context.context()), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Contexts, ReferencesOutliveAReset) {
  ASSERT_CU(cu().cuDevicePrimaryCtxReset(0));
  const PrimaryContext again = must(PrimaryContext::retain(driver, 0));
  EXPECT_EQ(again.context(), context.context());
  context.reset();  // one of the two
  EXPECT_TRUE(is_active());
}

// As on the real driver: the new context has the old one's handle and is current in its place.
TEST_F(Contexts, ADeviceIsUsableAgainAfterAReset) {
  ASSERT_CU(cu().cuDevicePrimaryCtxReset(0));
  const PrimaryContext again = must(PrimaryContext::retain(driver, 0));
  CUdeviceptr address = 0;
  EXPECT_CU(cu().cuMemAlloc(&address, 4096));
}

TEST_F(Contexts, AContextLivesUntilItsLastRelease) {
  CUcontext same = nullptr;
  ASSERT_CU(cu().cuDevicePrimaryCtxRetain(&same, 0));
  EXPECT_EQ(same, context.context());
  context.reset();
  EXPECT_TRUE(is_active());
  EXPECT_CU(cu().cuDevicePrimaryCtxRelease(0));
  EXPECT_FALSE(is_active());
  EXPECT_EQ(cu().cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
}

TEST_F(Contexts, MemoryOfTheContextIsFreedWithIt) {
  std::size_t before = 0, after = 0, total = 0;
  ASSERT_CU(cu().cuMemGetInfo(&before, &total));
  CUdeviceptr small = 0, large = 0;
  ASSERT_CU(cu().cuMemAlloc(&small, 100));
  ASSERT_CU(cu().cuMemAlloc(&large, 8 << 20));
  ASSERT_CU(cu().cuDevicePrimaryCtxReset(0));
  const PrimaryContext again = must(PrimaryContext::retain(driver, 0));
  const ScopedContext made_current = must(ScopedContext::push(driver, again.context()));
  ASSERT_CU(cu().cuMemGetInfo(&after, &total));
  EXPECT_EQ(before, after);
}

TEST_F(ContextsOfTwoDevices, AContextMayEndBeforeAStreamOfAnotherFreesItsMemory) {
  const PrimaryContext owner = must(PrimaryContext::retain(driver, 1));
  CUdeviceptr address = 0;
  {
    const ScopedContext made_current = must(ScopedContext::push(driver, owner.context()));
    ASSERT_CU(cu().cuMemAlloc(&address, 4096));
  }
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_CU(cu().cuMemFreeAsync(address, stream.get()));
  EXPECT_CU(cu().cuDevicePrimaryCtxReset(1));
  open_gate(0);
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
}

TEST_F(Contexts, CurrentContextsNest) {
  CUcontext seen = nullptr;
  {
    const PrimaryContext extra = must(PrimaryContext::retain(driver, 0));
    const ScopedContext inner = must(ScopedContext::push(driver, extra.context()));
    EXPECT_CU(cu().cuCtxGetCurrent(&seen));
    EXPECT_EQ(seen, extra.context());
  }
  EXPECT_CU(cu().cuCtxGetCurrent(&seen));
  EXPECT_EQ(seen, context.context());
}

TEST_F(Contexts, CallsThatNeedAContextSaySo) {
  current.reset();
  CUstream created = nullptr;
  EXPECT_EQ(cu().cuStreamCreate(&created, CU_STREAM_NON_BLOCKING), CUDA_ERROR_INVALID_CONTEXT);
  current.emplace(must(ScopedContext::push(driver, context.context())));
}

TEST_F(Contexts, AForkedChildCannotUseTheDriver) {
  const pid_t child = fork();
  if (child == 0) _exit(cu().cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED ? 42 : 1);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

TEST_F(Contexts, EntryPointsAreFoundByTheirBaseNames) {
  const auto get = symbol<decltype(&::cuGetProcAddress)>("cuGetProcAddress_v2");
  void* function = nullptr;
  CUdriverProcAddressQueryResult found{};
  EXPECT_CU(get("cuMemAlloc", &function, 13000, 0, &found));
  EXPECT_EQ(function, reinterpret_cast<void*>(cu().cuMemAlloc));
  for (const char* name : {"cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphMemcpyNodeGetParams"}) {
    EXPECT_CU(get(name, &function, 13000, 0, &found));
    EXPECT_EQ(function, symbol<void*>(name));
    EXPECT_EQ(found, CU_GET_PROC_ADDRESS_SUCCESS) << name;
  }
}

// As by driver 580 (H100).
TEST_F(Contexts, OnlyTheFirstVersionOfALookUpFailsIfItFindsNothing) {
  const auto get = symbol<decltype(&::cuGetProcAddress)>("cuGetProcAddress_v2");
  void* function = this;
  CUdriverProcAddressQueryResult found{};
  EXPECT_CU(get("cuNoSuchCall", &function, 13000, 0, &found));
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  const auto get_v1 = symbol<CUresult (*)(const char*, void**, int, cuuint64_t)>("cuGetProcAddress");
  function = this;
  EXPECT_EQ(get_v1("cuNoSuchCall", &function, 13000, 0), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(function, this);
  EXPECT_CU(get_v1("cuMemAlloc", &function, 13000, 0));
  EXPECT_EQ(function, reinterpret_cast<void*>(cu().cuMemAlloc));
}

TEST_F(Contexts, EntryPointsAreNotFoundForVersionsBeforeTheirParameters) {
  const auto get = symbol<decltype(&::cuGetProcAddress)>("cuGetProcAddress_v2");
  void* function = this;
  CUdriverProcAddressQueryResult found{};
  EXPECT_CU(get("cuGraphAddNode", &function, 12000, 0, &found));
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  EXPECT_CU(get("cuMemcpyBatchAsync", &function, 12080, 0, &found));
  EXPECT_EQ(function, nullptr);
  EXPECT_CU(get("cuMemcpyBatchAsync", &function, 13000, 0, &found));
  EXPECT_EQ(function, reinterpret_cast<void*>(cu().cuMemcpyBatchAsync));
  EXPECT_EQ(get("cuMemAlloc", &function, 13010, 0, &found), CUDA_ERROR_INVALID_VALUE) << "the driver is older";
}

}  // namespace
}  // namespace vmem::gpu
