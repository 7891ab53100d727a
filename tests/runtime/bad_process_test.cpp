// What the process does without telling vmem: fork, a context reset or faulted, streams in capture.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

class Forked : public RuntimeTest {};

TEST_F(Forked, EveryFunctionIsRefusedInTheChildAndTheParentIsUnharmed) {
  void* memory = allocate(4 * kMiB);
  void* small = allocate(1000);
  ASSERT_OK(acquire(range_of(memory, 10)));
  const ChildEnd end = run_in_child([&] {
    std::byte host[16];
    void* out = nullptr;
    vmem_pointer_info info{};
    vmem_statistics stats{};
    stats.struct_bytes = sizeof stats;
    const vmem_range range = range_of(memory, 10);
    const vmem_status all[] = {vmem_malloc(&out, 100, 0, nullptr),
                               vmem_free(small, nullptr),
                               vmem_free(nullptr, nullptr),
                               acquire(range),
                               release(range),
                               vmem_stream_close(nullptr),
                               vmem_prefetch(memory, 10),
                               vmem_advise(memory, 10, VMEM_ADVISE_PIN),
                               vmem_memcpy(memory, host, 10, nullptr),
                               vmem_memset(memory, 1, 10, nullptr),
                               vmem_read(host, memory, 10),
                               vmem_write(memory, host, 10),
                               vmem_query(memory, &info),
                               vmem_stats(&stats),
                               vmem_quiesce(),
                               vmem_shutdown(),
                               vmem_init(nullptr, 0)};
    int wrong = 0;
    for (const vmem_status status : all) wrong += status != VMEM_ERROR_FORKED;
    const std::string message = vmem_last_error();
    return wrong + (message.find("fork") == std::string::npos ? 100 : 0);
  });
  ASSERT_TRUE(WIFEXITED(end.status)) << "ended by signal " << WTERMSIG(end.status) << ": " << end.said;
  EXPECT_EQ(WEXITSTATUS(end.status), 0) << "functions that were not refused";
  EXPECT_OK(release(range_of(memory, 10)));
  EXPECT_OK(vmem_memset(memory, 1, 4 * kMiB, nullptr));
  EXPECT_OK(vmem_free(small, nullptr));
  EXPECT_OK(vmem_free(memory, nullptr));
}

// LeakSanitizer cannot see memory that only the parent's threads point to.
#if !defined(__SANITIZE_ADDRESS__)
TEST_F(Forked, TheChildCanExitAsUsual) {
  std::vector<void*> blocks;
  for (int i = 0; i < 200; ++i) blocks.push_back(allocate(30'000));
  for (void* block : blocks) EXPECT_OK(vmem_free(block, nullptr));
  const ChildEnd end = run_in_child([]() -> int { std::exit(7); });
  ASSERT_TRUE(WIFEXITED(end.status)) << "ended by signal " << WTERMSIG(end.status) << ": " << end.said;
  EXPECT_EQ(WEXITSTATUS(end.status), 7);
}
#endif

class LostDevice : public RuntimeTest {
 protected:
  // All calls that need the device report it lost; vmem can still end, and start anew.
  void expect_lost(void* memory, void* resident) {
    std::byte host[16]{};
    void* out = nullptr;
    // The first user of the context detects the loss; from then on every thread gets it.
    EXPECT_REFUSED(acquire(range_of(memory, 10)), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_quiesce(), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_malloc(&out, 4 * kMiB, 0, nullptr), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(acquire(range_of(memory, 10)), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(acquire(range_of(resident, 10)), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_prefetch(memory, 10), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_advise(memory, 10, VMEM_ADVISE_EVICT), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_memset(memory, 1, 10, nullptr), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_memcpy(memory, host, 10, nullptr), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_read(host, memory, 10), VMEM_ERROR_DEVICE_LOST);
    EXPECT_REFUSED(vmem_write(memory, host, 10), VMEM_ERROR_DEVICE_LOST);
    EXPECT_OK(vmem_shutdown());
  }
  // Unmaps a mapping of the test's own under a copy; the context is unusable from then on.
  void make_context_sick() {
    const gpu::DriverTable& cu = gpu->cu();
    CUmemAllocationProp where{};
    where.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    where.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    const CUmemAccessDesc access{where.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr page = 0;
    CUmemGenericAllocationHandle handle = 0;
    ASSERT_EQ(cu.cuMemAddressReserve(&page, 2 * kMiB, 0, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemCreate(&handle, 2 * kMiB, &where, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemMap(page, 2 * kMiB, 0, handle, 0), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemSetAccess(page, 2 * kMiB, &access, 1), CUDA_SUCCESS);
    CUstream stream = gpu->create_stream(0);
    std::atomic<bool> open{false};
    ASSERT_EQ(gpu->launch(stream, 0, [&open] { open.wait(false); }), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemcpyDtoDAsync(page, page + kMiB, 100, stream), CUDA_SUCCESS);
    ASSERT_EQ(cu.cuMemUnmap(page, 2 * kMiB), CUDA_SUCCESS);
    open = true;
    open.notify_all();
    ASSERT_EQ(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    EXPECT_EQ(cu.cuMemRelease(handle), CUDA_SUCCESS);
    EXPECT_EQ(cu.cuMemAddressFree(page, 2 * kMiB), CUDA_SUCCESS);
  }
  void expect_new_beginning() {
    gpu.reset();
    gpu = std::make_unique<EmulatedGpu>("devices=2,hbm=256MiB,host=512MiB");
    start();
    void* memory = allocate(100 * kMiB);
    EXPECT_OK(vmem_memset(memory, 1, 100 * kMiB, nullptr));
    EXPECT_OK(vmem_free(memory, nullptr));
    expect_nothing_left();
  }
};

TEST_F(LostDevice, AResetContextIsReportedAndARestartWorks) {
  void* memory = allocate(20 * kMiB);
  void* resident = allocate(4 * kMiB);
  ASSERT_OK(vmem_memset(resident, 1, 4 * kMiB, nullptr));
  ASSERT_OK(vmem_quiesce());
  give_up_bystander();
  ASSERT_EQ(gpu->cu().cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  expect_lost(memory, resident);
  expect_new_beginning();
}

TEST_F(LostDevice, ASickContextIsReportedAndARestartWorks) {
  void* memory = allocate(20 * kMiB);
  void* resident = allocate(4 * kMiB);
  ASSERT_OK(vmem_memset(resident, 1, 4 * kMiB, nullptr));
  ASSERT_OK(vmem_quiesce());
  give_up_bystander();
  make_context_sick();
  expect_lost(memory, resident);
  ASSERT_EQ(gpu->cu().cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  expect_new_beginning();
}

TEST_F(LostDevice, TheEndIsPossibleWhileRangesAreHeld) {
  void* memory = allocate(20 * kMiB);
  ASSERT_OK(acquire(range_of(memory, 10)));
  give_up_bystander();
  make_context_sick();
  EXPECT_REFUSED(vmem_memset(memory, 1, 20 * kMiB, nullptr), VMEM_ERROR_DEVICE_LOST);
  EXPECT_OK(vmem_shutdown());
  ASSERT_EQ(gpu->cu().cuDevicePrimaryCtxReset(0), CUDA_SUCCESS);
  expect_new_beginning();
}

// One thread's misuse of its own context is no loss for the others.
TEST_F(LostDevice, AThreadWithoutAContextLosesNothing) {
  void* memory = allocate(4 * kMiB);
  const gpu::DriverTable& cu = gpu->cu();
  std::thread([&] {
    std::byte from[16]{}, to[16]{};
    EXPECT_OK(vmem_memcpy(to, from, sizeof to, nullptr)) << "no vmem memory, and no context yet";
  }).join();
  std::thread([&] {
    const vmem_range range = range_of(memory, 10);
    EXPECT_OK(acquire(range));
    EXPECT_OK(release(range));
    EXPECT_EQ(cu.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_OK(acquire(range));
    EXPECT_EQ(cu.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_OK(release(range));
    EXPECT_EQ(cu.cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_OK(vmem_memset(memory, 1, 10, nullptr));
  }).join();
  EXPECT_OK(vmem_quiesce());
  EXPECT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

class Capturing : public RuntimeTest {
 protected:
  Capturing() : RuntimeTest({{"acquire_wait", "1ms"}}) {}
  void begin(CUstream stream) {
    ASSERT_EQ(gpu->cu().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED), CUDA_SUCCESS);
  }
  void end(CUstream stream) {
    CUgraph graph = nullptr;
    ASSERT_EQ(gpu->cu().cuStreamEndCapture(stream, &graph), CUDA_SUCCESS);
    if (graph != nullptr) {
      EXPECT_EQ(gpu->cu().cuGraphDestroy(graph), CUDA_SUCCESS);
    }
  }
};

TEST_F(Capturing, AcquireOnACapturingStreamIsRefused) {
  CUstream stream = gpu->create_stream(0);
  void* memory = allocate(4 * kMiB);
  begin(stream);
  EXPECT_REFUSED(acquire(range_of(memory, 10), stream), VMEM_ERROR_UNSUPPORTED, {"capturing", "launch"});
  EXPECT_REFUSED(vmem_memset(memory, 1, 10, stream), VMEM_ERROR_UNSUPPORTED, {"capturing"});
  EXPECT_OK(acquire(range_of(memory, 10))) << "on another stream";
  EXPECT_OK(release(range_of(memory, 10)));
  end(stream);
  EXPECT_OK(acquire(range_of(memory, 10), stream));
  EXPECT_OK(release(range_of(memory, 10), stream));
  EXPECT_OK(vmem_stream_close(stream));
  EXPECT_OK(vmem_free(memory, nullptr));
}

// The mover needs to know when the stream's work ends, but must not query a capturing stream.
TEST_F(Capturing, PagesUsedOnAStreamThatIsNowCapturingAreLeftAloneUntilItEnds) {
  CUstream stream = gpu->create_stream(0);
  void* used = allocate(40 * kMiB);
  void* other = allocate(60 * kMiB);
  ASSERT_OK(acquire(range_of(used, 40 * kMiB), stream));
  ASSERT_OK(release(range_of(used, 40 * kMiB), stream));
  begin(stream);
  ASSERT_OK(acquire(range_of(other, 60 * kMiB)));
  ASSERT_OK(release(range_of(other, 60 * kMiB)));
  end(stream);
  ASSERT_OK(acquire(range_of(other, 60 * kMiB)));
  ASSERT_OK(release(range_of(other, 60 * kMiB)));
  EXPECT_OK(vmem_stream_close(stream));
  EXPECT_OK(vmem_free(used, nullptr));
  EXPECT_OK(vmem_free(other, nullptr));
  expect_nothing_left();
}

TEST_F(Capturing, ReleasesOnAStreamThatIsNowCapturingDoNoHarm) {
  CUstream stream = gpu->create_stream(0);
  auto* memory = static_cast<std::byte*>(allocate(40 * kMiB));
  for (int i = 0; i < 40; ++i) ASSERT_OK(acquire(range_of(memory + std::size_t(i), 1), stream));
  begin(stream);
  for (int i = 0; i < 20; ++i) EXPECT_OK(release(range_of(memory + std::size_t(i), 1), stream));
  end(stream);
  for (int i = 20; i < 40; ++i) EXPECT_OK(release(range_of(memory + std::size_t(i), 1), stream));
  EXPECT_OK(vmem_quiesce());
  EXPECT_OK(vmem_stream_close(stream));
  EXPECT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

}  // namespace
}  // namespace vmem::test
