// A program that completes on a GPU with enough memory completes here, whatever holds the memory. A
// program that breaks the contract is stopped with a diagnosis.
#include <atomic>
#include <barrier>
#include <csignal>
#include <cstring>
#include <thread>

#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

class Progress : public RuntimeTest {
 protected:
  Progress() : RuntimeTest({{"acquire_wait", "2ms"}}) {}
  // For device code that waits for the test.
  static std::function<void()> wait_for(std::atomic<bool>& flag) {
    return [&flag] { flag.wait(false); };
  }
  static void set(std::atomic<bool>& flag) {
    flag = true;
    flag.notify_all();
  }
};

TEST_F(Progress, AKernelMayWaitForAFlagThatIsSetAfterTheNextLaunch) {
  CUstream first = gpu->create_stream(0);
  CUstream second = gpu->create_stream(0);
  void* all = allocate(64 * kMiB);
  auto* more = static_cast<std::byte*>(allocate(20 * kMiB));
  std::atomic<bool> flag{false};
  ASSERT_OK(acquire(range_of(all, 64 * kMiB), first));
  ASSERT_EQ(gpu->launch(first, 0, wait_for(flag)), CUDA_SUCCESS);
  ASSERT_OK(release(range_of(all, 64 * kMiB), first));
  // Nothing can be evicted until the flag is set, after this call.
  ASSERT_OK(acquire(range_of(more, 20 * kMiB), second));
  ASSERT_EQ(gpu->launch(second, 0, [more] { std::memset(more, 5, 20 * kMiB); }), CUDA_SUCCESS);
  ASSERT_OK(release(range_of(more, 20 * kMiB), second));
  set(flag);
  gpu->synchronize(second);
  std::byte last{};
  EXPECT_OK(vmem_read(&last, more + 20 * kMiB - 1, 1));
  EXPECT_EQ(last, std::byte{5});
  EXPECT_GT(statistics().in_place_acquires, 0u);
  EXPECT_OK(vmem_free(all, nullptr));
  EXPECT_OK(vmem_free(more, nullptr));
  expect_nothing_left();
}

TEST_F(Progress, TwoThreadsThatHoldWhatTheOtherWantsBothGoOn) {
  void* memory[] = {allocate(60 * kMiB), allocate(60 * kMiB)};
  std::barrier both_hold(2);
  const auto work = [&](std::size_t mine) {
    gpu->make_current(0);
    const vmem_range own = range_of(memory[mine], 60 * kMiB);
    const vmem_range other = range_of(memory[1 - mine], 60 * kMiB);
    EXPECT_OK(acquire(own, CU_STREAM_PER_THREAD));
    both_hold.arrive_and_wait();
    EXPECT_OK(acquire(other, CU_STREAM_PER_THREAD));
    both_hold.arrive_and_wait();
    EXPECT_OK(release(other, CU_STREAM_PER_THREAD));
    EXPECT_OK(release(own, CU_STREAM_PER_THREAD));
    EXPECT_OK(vmem_stream_close(CU_STREAM_PER_THREAD));
  };
  std::thread first(work, 0), second(work, 1);
  first.join();
  second.join();
  for (void* each : memory) EXPECT_OK(vmem_free(each, nullptr));
  expect_nothing_left();
}

TEST_F(Progress, EightThreadsWorkThroughFourTimesTheHbm) {
  constexpr std::size_t kBytes = 32 * kMiB, kPart = 8 * kMiB;
  constexpr int kRounds = 40;
  std::vector<std::thread> threads;
  for (int number = 0; number < 8; ++number) {
    threads.emplace_back([&, number] {
      CUstream stream = gpu->create_stream(0);
      auto* memory = static_cast<std::byte*>(allocate(kBytes));
      EXPECT_OK(vmem_memset(memory, number, kBytes, stream));
      for (int round = 0; round < kRounds; ++round) {
        std::byte* part = memory + kPart * std::size_t(round % 4);
        EXPECT_OK(acquire(range_of(part, kPart), stream));
        const auto add = [part, bytes = kPart] {
          for (std::size_t page = 0; page < bytes; page += 2 * kMiB) part[page] = std::byte(int(part[page]) + 1);
        };
        EXPECT_EQ(gpu->launch(stream, 0, add), CUDA_SUCCESS);
        EXPECT_OK(release(range_of(part, kPart), stream));
      }
      for (std::size_t page = 0; page < kBytes; page += 2 * kMiB) {
        std::byte found[2];
        EXPECT_OK(vmem_read(found, memory + page, 2));
        EXPECT_EQ(int(found[0]), number + kRounds / 4);
        EXPECT_EQ(int(found[1]), number);
      }
      EXPECT_OK(vmem_stream_close(stream));
      EXPECT_OK(vmem_free(memory, nullptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(statistics().evictions, 0u);
  expect_nothing_left();
}

// Each test runs in its own process, which the emulated driver ends as a GPU fault ends a context.
class StrayAccess : public ::testing::Test {
 protected:
  StrayAccess() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  static std::byte* start_and_allocate(EmulatedGpu& gpu, std::size_t bytes) {
    gpu.make_current(0);
    void* memory = nullptr;
    EXPECT_OK(start_vmem({{"protect", "on"}, {"prefetch", "0"}}));
    EXPECT_OK(vmem_malloc(&memory, bytes, 0, nullptr));
    EXPECT_OK(vmem_memset(memory, 1, bytes, nullptr));
    // The mover ignores the advice while the page may be in use, or lacks host memory.
    vmem_pointer_info info{};
    do {
      EXPECT_OK(vmem_advise(memory, bytes, VMEM_ADVISE_EVICT));
      EXPECT_OK(vmem_query(memory, &info));
    } while (info.bytes_hbm != 0);
    return static_cast<std::byte*>(memory);
  }
};

TEST_F(StrayAccess, AWriteToAPageAcquiredForReadingIsStopped) {
  EXPECT_EXIT(
      {
        EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
        std::byte* memory = start_and_allocate(gpu, 4 * kMiB);
        EXPECT_OK(acquire(range_of(memory, 4 * kMiB, VMEM_READ)));
        (void)gpu.launch(nullptr, 0, [memory] { *static_cast<volatile std::byte*>(memory) = std::byte{2}; });
        (void)gpu.cu().cuCtxSynchronize();
      },
      ::testing::KilledBySignal(SIGSEGV), "wrote to 0x[0-9a-f]+: mapped, this device has read-only");
}

// Even if the page is evicted and loaded again, or used in place.
TEST_F(StrayAccess, WithoutProtectionAWriteToAPageAcquiredForReadingIsKept) {
  EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
  gpu.make_current(0);
  constexpr std::size_t kBytes = 256 * kMiB;  // four times the HBM budget
  void* memory = nullptr;
  ASSERT_OK(start_vmem({}));
  ASSERT_OK(vmem_malloc(&memory, kBytes, 0, nullptr));
  ASSERT_OK(vmem_memset(memory, 1, kBytes, nullptr));
  auto* const bytes = static_cast<std::byte*>(memory);
  const auto read_all = [&](auto&& use) {
    for (std::size_t at = 0; at < kBytes; at += 16 * kMiB) {
      const vmem_range piece = range_of(bytes + at, 16 * kMiB, VMEM_READ);
      ASSERT_OK(acquire(piece));
      ASSERT_EQ(gpu.launch(nullptr, 0, [&use, at] { use(at); }), CUDA_SUCCESS);
      ASSERT_OK(release(piece));
      ASSERT_EQ(gpu.cu().cuCtxSynchronize(), CUDA_SUCCESS);
    }
  };
  read_all([&](std::size_t at) { bytes[at + 12345] = std::byte{2}; });
  std::size_t wrong = 0;
  for (int pass = 0; pass < 3; ++pass) read_all([&](std::size_t at) { wrong += bytes[at + 12345] != std::byte{2}; });
  EXPECT_EQ(wrong, 0u);
  EXPECT_OK(vmem_free(memory, nullptr));
  EXPECT_OK(vmem_shutdown());
}

TEST_F(StrayAccess, AnAccessWithoutAcquireAfterEvictionIsStopped) {
  EXPECT_EXIT(
      {
        EmulatedGpu gpu("devices=1,hbm=128MiB,host=512MiB");
        std::byte* memory = start_and_allocate(gpu, 4 * kMiB);
        (void)gpu.launch(nullptr, 0, [memory] { (void)*static_cast<volatile std::byte*>(memory); });
        (void)gpu.cu().cuCtxSynchronize();
      },
      ::testing::KilledBySignal(SIGSEGV), "read 0x[0-9a-f]+: reserved, nothing is mapped there");
}

}  // namespace
}  // namespace vmem::test
