// Two programs, one of which lends the spare memory of its GPU to the other. Here both are runtimes
// of one process; tests/peer covers two processes.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "gpu/handles.hpp"
#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"

namespace vmem::test {
namespace {

using runtime::Runtime;

constexpr std::size_t kMiB = std::size_t{1} << 20;

struct LentHbm : ::testing::Test {
  EmulatedGpu gpu{"devices=2,hbm=256MiB,host=1GiB"};
  std::string folder = ::testing::TempDir() + "vmem-lent-XXXXXX";
  std::unique_ptr<Runtime> owner, borrower;
  CUstream of_owner = nullptr, of_borrower = nullptr;

  void SetUp() override { ASSERT_NE(::mkdtemp(folder.data()), nullptr); }
  void TearDown() override {
    for (auto* runtime : {&borrower, &owner}) {
      if (!*runtime) continue;
      EXPECT_TRUE((*runtime)->shut_down());
    }
    borrower.reset();
    owner.reset();
    std::filesystem::remove_all(folder);
  }
  std::string path() const { return folder + "/gpu1"; }
  static Options sized(int device, std::size_t hbm_mib, std::size_t host_mib) {
    Options options;
    options.space_bytes = 4096 * kMiB;
    options.devices = {device};
    options.hbm_bytes = hbm_mib * kMiB;
    options.host_bytes = host_mib * kMiB;
    options.page_bytes = 2 * kMiB;
    return options;
  }
  void start(std::size_t lent_mib) {
    Options lending = sized(1, 128, 16);
    lending.lend = {{.device = 1, .bytes = lent_mib * kMiB, .socket = path()}};
    auto made = Runtime::create(lending, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    owner = std::move(*made);
    Options borrowing = sized(0, 32, 256);
    borrowing.peers = {{.device = -1, .socket = path()}};
    made = Runtime::create(borrowing, gpu.driver());
    ASSERT_TRUE(made) << made.error().message;
    borrower = std::move(*made);
    of_owner = gpu.create_stream(1);
    of_borrower = gpu.create_stream(0);
  }
  static vmem_statistics figures(Runtime& runtime) {
    vmem_statistics all{};
    all.struct_bytes = sizeof all;
    EXPECT_TRUE(runtime.statistics(all));
    return all;
  }
  void use(Runtime& runtime, int device, CUstream stream, unsigned char* at, std::size_t bytes, bool write) {
    gpu.make_current(device);
    for (std::size_t done = 0; done < bytes; done += 2 * kMiB) {
      const std::array range{vmem_range{at + done, 2 * kMiB, write ? VMEM_WRITE : VMEM_READ, 0}};
      ASSERT_TRUE(runtime.hit_path().acquire(range, stream));
      const auto value = static_cast<unsigned char>(done / (2 * kMiB) * 7 + 1);
      ASSERT_EQ(gpu.launch(stream, device,
                           [this, from = at + done, value, write] {
                             for (std::size_t i = 0; i < 2 * kMiB; i += 4093) {
                               if (write) from[i] = value;
                               wrong += from[i] == value ? 0 : 1;
                             }
                           }),
                CUDA_SUCCESS);
      ASSERT_TRUE(runtime.hit_path().release(range, stream));
      gpu.synchronize(stream);
    }
    EXPECT_EQ(wrong, 0);
  }
  static bool comes_true(const std::function<bool()>& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
    return condition();
  }
  int wrong = 0;
};

TEST_F(LentHbm, TakesPagesUntilItsOwnerNeedsItAndNothingIsLost) {
  start(96);
  constexpr std::size_t kBytes = 96 * kMiB;
  auto* const data = static_cast<unsigned char*>(*borrower->allocations().allocate(kBytes, 0, of_borrower));
  for (const bool write : {true, false, false}) use(*borrower, 0, of_borrower, data, kBytes, write);
  const std::uint64_t there = figures(*borrower).peer_used_bytes;
  EXPECT_GE(there, 32 * kMiB);
  EXPECT_GE(figures(*owner).lent_bytes, there);
  EXPECT_LE(figures(*owner).hbm_budget_bytes, 128 * kMiB - there);
  // Needs all of the owner's memory, so that nothing is left to lend. The owner proceeds at once,
  // and waits only for room that comes back.
  auto* const own = static_cast<unsigned char*>(*owner->allocations().allocate(120 * kMiB, 1, of_owner));
  for (const bool write : {true, false}) use(*owner, 1, of_owner, own, 120 * kMiB, write);
  EXPECT_LE(figures(*owner).lent_bytes, 8 * kMiB);
  EXPECT_EQ(figures(*owner).lent_overdue_bytes, 0u);
  EXPECT_GT(figures(*borrower).peer_returned_bytes, 0u);
  use(*borrower, 0, of_borrower, data, kBytes, false);
  // The lender frees it, and lends again.
  ASSERT_TRUE(owner->allocations().free(own, of_owner));
  gpu.synchronize(of_owner);
  EXPECT_TRUE(comes_true([&] { return figures(*borrower).peer_budget_bytes >= 64 * kMiB; }));
  for (int round = 0; round < 2; ++round) use(*borrower, 0, of_borrower, data, kBytes, false);
}

TEST_F(LentHbm, IsTheOwnersAgainWhenTheBorrowerEnds) {
  start(96);
  constexpr std::size_t kBytes = 96 * kMiB;
  auto* const data = static_cast<unsigned char*>(*borrower->allocations().allocate(kBytes, 0, of_borrower));
  for (const bool write : {true, false}) use(*borrower, 0, of_borrower, data, kBytes, write);
  ASSERT_GT(figures(*owner).lent_bytes, 0u);
  ASSERT_TRUE(borrower->shut_down());
  borrower.reset();
  EXPECT_TRUE(comes_true([&] { return figures(*owner).lent_bytes == 0; }));
}

// For a while other users of the GPU took all room.
TEST_F(LentHbm, IsAskedForAgainAfterItCouldNotBeHad) {
  start(96);
  CUmemGenericAllocationHandle others = 0;
  const CUmemAllocationProp on_device = gpu::device_memory(1, false);
  ASSERT_EQ(gpu.cu().cuMemCreate(&others, 254 * kMiB, &on_device, 0), CUDA_SUCCESS);
  constexpr std::size_t kBytes = 64 * kMiB;
  auto* const data = static_cast<unsigned char*>(*borrower->allocations().allocate(kBytes, 0, of_borrower));
  for (const bool write : {true, false}) use(*borrower, 0, of_borrower, data, kBytes, write);
  EXPECT_LE(figures(*borrower).peer_used_bytes, 2 * kMiB);
  ASSERT_EQ(gpu.cu().cuMemRelease(others), CUDA_SUCCESS);
  EXPECT_TRUE(comes_true([&] {
    auto* const more = static_cast<unsigned char*>(*borrower->allocations().allocate(kBytes, 0, of_borrower));
    use(*borrower, 0, of_borrower, more, kBytes, true);
    const bool there = figures(*borrower).peer_used_bytes > 8 * kMiB;
    EXPECT_TRUE(borrower->allocations().free(more, of_borrower));
    return there;
  }));
}

TEST_F(LentHbm, IsNotCountedOnByAllocations) {
  start(96);
  const auto all = borrower->allocations().allocate(300 * kMiB, 0, of_borrower);
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().status, VMEM_ERROR_OUT_OF_MEMORY);
}

TEST_F(LentHbm, StaysWithTheBorrowerWhenTheOwnerEnds) {
  start(96);
  constexpr std::size_t kBytes = 64 * kMiB;
  auto* const data = static_cast<unsigned char*>(*borrower->allocations().allocate(kBytes, 0, of_borrower));
  for (const bool write : {true, false}) use(*borrower, 0, of_borrower, data, kBytes, write);
  ASSERT_GT(figures(*borrower).peer_used_bytes, 0u);
  ASSERT_TRUE(owner->shut_down());
  owner.reset();
  for (int round = 0; round < 2; ++round) use(*borrower, 0, of_borrower, data, kBytes, false);
}

TEST_F(LentHbm, WhatCannotBeLentOrBorrowedIsRefusedAtTheStart) {
  Options options = sized(1, 128, 64);
  options.lend = {{.device = 0, .bytes = {}, .socket = path()}};
  auto made = Runtime::create(options, gpu.driver());
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("--peers 0"), std::string::npos) << made.error().message;
  options.lend = {{.device = 1, .bytes = 1024 * kMiB, .socket = path()}};
  made = Runtime::create(options, gpu.driver());
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("its budget is 128 MiB"), std::string::npos) << made.error().message;
  start(96);
  Options own = sized(1, 32, 64);
  own.peers = {{.device = -1, .socket = path()}};
  made = Runtime::create(own, gpu.driver());
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("which this program uses itself"), std::string::npos) << made.error().message;
  own = sized(0, 32, 64);
  own.peers = {{.device = -1, .socket = folder + "/nobody"}};
  made = Runtime::create(own, gpu.driver());
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("nobody"), std::string::npos) << made.error().message;
  Options both = sized(0, 32, 64);
  both.devices = {0, 1};
  both.peers = {{.device = 1, .socket = ""}};
  both.lend = {{.device = 1, .bytes = {}, .socket = folder + "/gpu1-too"}};
  made = Runtime::create(both, gpu.driver());
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("either to other processes (--lend)"), std::string::npos) << made.error().message;
}

TEST_F(LentHbm, AFullGpuIsNoPeer) {
  const CUmemAllocationProp on_second{.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                      .requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE,
                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                                      .win32HandleMetaData = nullptr,
                                      .allocFlags = {}};
  std::vector<CUmemGenericAllocationHandle> all;
  CUmemGenericAllocationHandle one = 0;
  while (gpu.cu().cuMemCreate(&one, 2 * kMiB, &on_second, 0) == CUDA_SUCCESS) all.push_back(one);
  ASSERT_FALSE(all.empty());
  Options options = sized(0, 32, 64);
  options.peers = {{.device = 1, .socket = ""}};
  const auto made = Runtime::create(options, gpu.driver());
  for (const auto handle : all) EXPECT_EQ(gpu.cu().cuMemRelease(handle), CUDA_SUCCESS);
  ASSERT_FALSE(made);
  EXPECT_NE(made.error().message.find("device 1 has only 0 B free"), std::string::npos) << made.error().message;
}

}  // namespace
}  // namespace vmem::test
