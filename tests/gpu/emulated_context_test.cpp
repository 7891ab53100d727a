// Contexts end, and what belonged to them says so.
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

// As on the real driver: the new context has the old one's handle, and is current where that was.
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
  using GetProcAddress = decltype(&::cuGetProcAddress);
  void* library = dlopen(driver->path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto get = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  ASSERT_NE(get, nullptr);
  void* function = nullptr;
  CUdriverProcAddressQueryResult found{};
  EXPECT_CU(get("cuMemAlloc", &function, 13000, 0, &found));
  EXPECT_EQ(function, reinterpret_cast<void*>(cu().cuMemAlloc));
  EXPECT_EQ(get("cuNoSuchCall", &function, 13000, 0, &found), CUDA_ERROR_NOT_FOUND);
  EXPECT_EQ(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

}  // namespace
}  // namespace vmem::gpu
