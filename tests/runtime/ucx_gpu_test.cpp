// What a transport over UCX is told of the GPUs of its process.
#include "runtime/remote/ucx_gpu.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/emulated_gpu.hpp"

namespace vmem::test {
namespace {

class UcxGpu : public ::testing::Test {
 protected:
  CUcontext current() {
    CUcontext context = nullptr;
    EXPECT_EQ(gpu.cu().cuCtxGetCurrent(&context), CUDA_SUCCESS);
    return context;
  }
  EmulatedGpu gpu{"devices=2,hbm=256MiB,host=256MiB"};
};

// A program's thread may have pushed several.
TEST_F(UcxGpu, MemoryIsRegisteredWithNoContextCurrentAndTheThreadsContextsComeBack) {
  gpu.make_current(0);
  const auto pushed = gpu::ScopedContext::push(gpu.driver(), gpu.context(1));
  ASSERT_TRUE(pushed) << pushed.error().message;
  int calls = 0;
  const auto call = [&] {
    ++calls;
    EXPECT_EQ(current(), nullptr);
  };
  runtime::without_context(gpu.driver())(call);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(current(), gpu.context(1));
  CUcontext popped = nullptr;
  EXPECT_EQ(gpu.cu().cuCtxPopCurrent(&popped), CUDA_SUCCESS);
  EXPECT_EQ(current(), gpu.context(0));
  EXPECT_EQ(gpu.cu().cuCtxPushCurrent(popped), CUDA_SUCCESS);
}

// UCX replaces memory functions of the process, and so does ThreadSanitizer.
#ifndef __SANITIZE_THREAD__
// The memory of an emulated GPU is host memory, which every UCX knows.
TEST_F(UcxGpu, AProgramReceivesFromGpusWhoseMemoryItsUcxKnows) {
  const auto memory = runtime::receive_from_gpus(gpu.driver(), {{"TLS", "tcp"}, {"NET_DEVICES", "lo"}});
  ASSERT_TRUE(memory);
  EXPECT_EQ(memory->type, rdma::UcxMemoryType::host);
  ASSERT_TRUE(memory->enter_thread);
  std::thread([&] {
    memory->enter_thread();
    EXPECT_EQ(current(), nullptr) << "it needs no context";
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    EXPECT_EQ(gpu.cu().cuThreadExchangeStreamCaptureMode(&mode), CUDA_SUCCESS);
    EXPECT_EQ(mode, CU_STREAM_CAPTURE_MODE_RELAXED);
  }).join();
  EXPECT_TRUE(memory->without_context);
  EXPECT_FALSE(runtime::receive_from_gpus(gpu.driver(), {{"TLS", "ib"}, {"NET_DEVICES", "none0:1"}}));
}
#endif

}  // namespace
}  // namespace vmem::test
