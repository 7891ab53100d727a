#include "gpu/driver.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

TEST(Driver, WhatIsNoFileIsNoDriverAndNotWaitedFor) {
  const std::string fifo = "driver-fifo-" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {std::string("./") + fifo, std::string("/dev/zero"), std::string("/tmp")}) {
    const auto driver = Driver::load(path);
    ASSERT_FALSE(driver) << path;
    EXPECT_EQ(driver.error().status, VMEM_ERROR_NO_DRIVER);
    EXPECT_NE(driver.error().message.find(path + (path == "/tmp" ? " is a directory" : " is no regular file")),
              std::string::npos)
        << driver.error().message;
  }
  ASSERT_EQ(::unlink(fifo.c_str()), 0);
}

TEST(Driver, TheEmulatedDriverLoadsAndSaysWhatItIs) {
  const DriverRef driver = emulated_driver("");
  EXPECT_TRUE(driver->emulated());
  EXPECT_EQ(driver->version(), 13000);
  EXPECT_NE(driver->path().find("libvmem_emu.so"), std::string::npos);
}

TEST(Driver, AMissingLibraryIsNamed) {
  const auto driver = Driver::load("/nonexistent/libcuda.so.1");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().status, VMEM_ERROR_NO_DRIVER);
  EXPECT_NE(driver.error().message.find("/nonexistent/libcuda.so.1"), std::string::npos);
}

TEST(Driver, ALibraryThatIsNoDriverIsToldByWhatItLacks) {
  const auto driver = Driver::load("libm.so.6");
  ASSERT_FALSE(driver);
  EXPECT_EQ(driver.error().status, VMEM_ERROR_NO_DRIVER);
  EXPECT_NE(driver.error().message.find("lacks cuInit and"), std::string::npos) << driver.error().message;
}

TEST(Driver, ResultsBecomeStatuses) {
  const DriverRef driver = emulated_driver("");
  EXPECT_TRUE(driver->check(CUDA_SUCCESS, "cuMemMap"));
  const auto status = [&](CUresult result) { return driver->check(result, "cuMemMap").error().status; };
  EXPECT_EQ(status(CUDA_ERROR_OUT_OF_MEMORY), VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(status(CUDA_ERROR_ILLEGAL_ADDRESS), VMEM_ERROR_DEVICE_LOST);
  EXPECT_EQ(status(CUDA_ERROR_CONTEXT_IS_DESTROYED), VMEM_ERROR_DEVICE_LOST);
  EXPECT_EQ(status(CUDA_ERROR_INVALID_VALUE), VMEM_ERROR_DRIVER);
}

TEST(Driver, ErrorsNameTheCallAndTheDriversWords) {
  const Status failed = emulated_driver("")->check(CUDA_ERROR_INVALID_VALUE, "cuMemMap");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().native, CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(failed.error().message, "cuMemMap failed: CUDA_ERROR_INVALID_VALUE (invalid argument)");
}

TEST(Driver, ResultsItDoesNotKnowAreStillErrors) {
  const Status failed = emulated_driver("")->check(static_cast<CUresult>(12345), "cuMemMap");
  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().message.find("unknown"), std::string::npos);
}

}  // namespace
}  // namespace vmem::gpu
