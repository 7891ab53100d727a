#include "gpu/fault_injection.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class Injection : public testing::Test {
 protected:
  CUresult count() {
    int devices = 0;
    return (*driver)->cuDeviceGetCount(&devices);
  }
  CUresult get() {
    CUdevice device = 0;
    return (*driver)->cuDeviceGet(&device, 0);
  }
  FaultInjector injector{emulated_driver("")};
  DriverRef driver = injector.driver();
};

TEST_F(Injection, CallsPassThroughUntilAFaultIsPlanned) {
  int devices = 0;
  EXPECT_CU((*driver)->cuDeviceGetCount(&devices));
  EXPECT_EQ(devices, 1);
  EXPECT_TRUE(driver->emulated());
  EXPECT_EQ(driver->version(), 13000);
}

TEST_F(Injection, TheNthCallFailsOnce) {
  injector.fail_nth(3, CUDA_ERROR_UNKNOWN);
  EXPECT_CU(count());
  EXPECT_CU(get());
  EXPECT_EQ(count(), CUDA_ERROR_UNKNOWN);
  EXPECT_CU(count());
}

TEST_F(Injection, ANamedFunctionFailsOnItsOwnCount) {
  injector.fail_nth("cuDeviceGet", 2, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CU(get());
  EXPECT_CU(count());
  EXPECT_EQ(get(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CU(get());
}

TEST_F(Injection, FunctionsAreNamedAsInTheTableWhateverTheirVersion) {
  std::size_t bytes = 0;
  injector.fail_nth("cuDeviceTotalMem", 1, CUDA_ERROR_UNKNOWN);  // exported as cuDeviceTotalMem_v2
  EXPECT_EQ((*driver)->cuDeviceTotalMem(&bytes, 0), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(injector.calls("cuDeviceTotalMem"), 1u);
}

TEST_F(Injection, SeveralPlansAreKept) {
  injector.fail_nth("cuDeviceGet", 1, CUDA_ERROR_UNKNOWN);
  injector.fail_nth("cuDeviceGet", 3, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(get(), CUDA_ERROR_UNKNOWN);
  EXPECT_CU(get());
  EXPECT_EQ(get(), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(Injection, AFunctionCanFailUntilFurtherNotice) {
  injector.fail_always("cuDeviceGet", CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(get(), CUDA_ERROR_UNKNOWN);
  EXPECT_EQ(get(), CUDA_ERROR_UNKNOWN);
  EXPECT_CU(count());
  injector.fail_always("cuDeviceGet", CUDA_SUCCESS);
  EXPECT_CU(get());
}

TEST_F(Injection, ClearingForgetsThePlansAndKeepsTheCounts) {
  injector.fail_nth(1, CUDA_ERROR_UNKNOWN);
  injector.clear_plans();
  EXPECT_CU(get());
  EXPECT_EQ(injector.calls(), 1u);
}

TEST_F(Injection, TheLogHasTheOrderOfTheCalls) {
  get();
  injector.start_log();
  count();
  get();
  EXPECT_EQ(injector.log(), (std::vector<std::string>{"cuDeviceGetCount", "cuDeviceGet"}));
}

TEST_F(Injection, AFailedCallDoesNotReachTheDriver) {
  CUmemGenericAllocationHandle handle = 7;
  const CUmemAllocationProp properties = device_memory(0, false);
  injector.fail_nth("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ((*driver)->cuMemCreate(&handle, std::size_t{2} << 20, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(handle, 7u);
}

TEST_F(Injection, AHookSeesEveryCallBeforeItHappens) {
  std::vector<std::string> seen;
  injector.on_call([&](std::string_view function) { seen.emplace_back(function); });
  get();
  EXPECT_EQ(seen, std::vector<std::string>{"cuDeviceGet"});
  injector.on_call(nullptr);
  get();
  EXPECT_EQ(seen.size(), 1u);
}

TEST_F(Injection, ThreadsAreCountedTogether) {
  constexpr std::uint64_t per_thread = 500;
  injector.fail_nth("cuDeviceGet", 2 * per_thread, CUDA_ERROR_UNKNOWN);
  std::atomic<int> failures{0};
  const auto work = [&] {
    for (std::uint64_t i = 0; i < per_thread; ++i)
      if (get() != CUDA_SUCCESS) ++failures;
  };
  std::thread a(work), b(work);
  a.join();
  b.join();
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(injector.calls("cuDeviceGet"), 2 * per_thread);
}

TEST(NestedInjection, TheLatestInjectorIsInForceWhileItLives) {
  FaultInjector outer(emulated_driver(""));
  const DriverRef driver = outer.driver();
  int devices = 0;
  {
    FaultInjector inner(emulated_driver(""));
    inner.fail_nth(1, CUDA_ERROR_UNKNOWN);
    EXPECT_EQ((*driver)->cuDeviceGetCount(&devices), CUDA_ERROR_UNKNOWN);
  }
  EXPECT_CU((*driver)->cuDeviceGetCount(&devices));
}

}  // namespace
}  // namespace vmem::gpu
