#include "gpu/call_times.hpp"

#include <gmock/gmock.h>
#include <sys/prctl.h>

#include <thread>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class CallTimes : public testing::Test {
 protected:
  CallTimes() { (void)take_call_times(); }  // making the driver queries its version
  CUresult count() {
    int devices = 0;
    return (*driver)->cuDeviceGetCount(&devices);
  }
  CUresult get(int device) {
    CUdevice handle = 0;
    return (*driver)->cuDeviceGet(&handle, device);
  }
  std::shared_ptr<const Driver> driver = with_call_times(emulated_driver(""));
};

TEST_F(CallTimes, CallsArePassedOnWithTheirResults) {
  int devices = 0;
  EXPECT_CU((*driver)->cuDeviceGetCount(&devices));
  EXPECT_EQ(devices, 1);
  EXPECT_EQ(get(7), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_TRUE(driver->emulated());
}

TEST_F(CallTimes, ThreadsOfOneNameAreOneAndEachCallIsToldOnce) {
  const auto named = [&] {
    ::prctl(PR_SET_NAME, "vmem-test");
    EXPECT_CU(count());
    EXPECT_CU(count());
  };
  std::thread(named).join();
  std::thread(named).join();
  EXPECT_CU(get(0));
  const auto taken = take_call_times();
  ASSERT_EQ(taken.size(), 2u);
  const auto& [own, others] =
      taken[0].thread == "vmem-test" ? std::tie(taken[1], taken[0]) : std::tie(taken[0], taken[1]);
  EXPECT_EQ(others.function, "cuDeviceGetCount");
  EXPECT_EQ(others.calls, 4u);
  EXPECT_EQ(own.function, "cuDeviceGet");
  EXPECT_EQ(own.calls, 1u);
  for (const CallTime& each : taken) {
    EXPECT_GT(each.most_ns, 0u);
    EXPECT_GE(each.ns, each.most_ns);
    EXPECT_LE(each.ns, each.most_ns * each.calls);
  }
  EXPECT_TRUE(take_call_times().empty());
}

TEST_F(CallTimes, WhatTookLongestIsFirst) {
  for (int i = 0; i < 1000; ++i) EXPECT_CU(count());
  EXPECT_CU(get(0));
  const auto taken = take_call_times();
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_GE(taken[0].ns, taken[1].ns);
  const std::string words = words_of(taken);
  EXPECT_THAT(words, testing::HasSubstr("cuDeviceGetCount"));
  EXPECT_EQ(std::ranges::count(words, '\n'), 2);
}

}  // namespace
}  // namespace vmem::gpu
