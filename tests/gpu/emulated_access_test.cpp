// Wrong accesses on the emulated driver: it reports the access before the process ends.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "gpu/driver_fixture.hpp"

namespace {

std::atomic<bool> no_protection{false};

}  // namespace

// Fails as if the process had reached the limit of mappings.
extern "C" [[gnu::visibility("default")]] int mprotect(void* begin, std::size_t bytes, int protection) noexcept {
  if (!no_protection) return static_cast<int>(syscall(SYS_mprotect, begin, bytes, protection));
  errno = ENOMEM;
  return -1;
}

namespace vmem::gpu {
namespace {

using testing::ExitedWithCode;
using testing::KilledBySignal;

class HostAccess : public DriverTest {
 protected:
  explicit HostAccess(const char* spec = "check_host_access=1") : DriverTest(emulated_driver(spec)) {}
  // Volatile, so that sanitizers and optimisers leave the access alone.
  static std::uint32_t load(const std::uint32_t* word) { return *static_cast<const volatile std::uint32_t*>(word); }
  static void store(std::uint32_t* word) { *static_cast<volatile std::uint32_t*>(word) = 1; }
};

class UncheckedHostAccess : public HostAccess {
 protected:
  UncheckedHostAccess() : HostAccess("check_host_access=0") {}
};

TEST_F(HostAccess, AHostThreadThatReadsDeviceMemoryIsStopped) {
  EXPECT_EXIT(
      {
        const Page page(driver, granularity, device_memory(0, false));
        load(page.words());
      },
      KilledBySignal(SIGSEGV), "a host thread read 0x[0-9a-f]+ outside a kernel: mapped, the host has no access");
}

TEST_F(HostAccess, AHostThreadThatReadsAReservationIsStopped) {
  EXPECT_EXIT(
      {
        const Reservation range = must(Reservation::create(driver, granularity));
        store(reinterpret_cast<std::uint32_t*>(range.begin()));
      },
      KilledBySignal(SIGSEGV),
      "a host thread wrote to 0x[0-9a-f]+ outside a kernel: reserved, nothing is mapped there");
}

TEST_F(HostAccess, MemoryOpenedForAKernelIsClosedAfterIt) {
  EXPECT_EXIT(
      {
        const Page page(driver, granularity, device_memory(0, false));
        EXPECT_CU(fill(page, 1, stream.get()));
        EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
        load(page.words());
      },
      KilledBySignal(SIGSEGV), "a host thread read");
}

TEST_F(HostAccess, AllocatedMemoryIsDeviceMemory) {
  EXPECT_EXIT(
      {
        CUdeviceptr address = 0;
        EXPECT_CU(cu().cuMemAlloc(&address, 64));
        load(reinterpret_cast<const std::uint32_t*>(address));
      },
      KilledBySignal(SIGSEGV), "a host thread read");
}

TEST_F(HostAccess, HostReadOnlyAccessAllowsReadsOnly) {
  const Page page(driver, granularity, host_memory(0, false));
  const CUmemAccessDesc desc = access_of_host(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_CU(cu().cuMemSetAccess(page.address(), page.bytes(), &desc, 1));
  EXPECT_CU(fill(page, 3, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_EQ(load(page.words()), 3u);
  EXPECT_EXIT(
      {
        const Page again(driver, granularity, host_memory(0, false));
        EXPECT_CU(cu().cuMemSetAccess(again.address(), again.bytes(), &desc, 1));
        store(again.words());
      },
      KilledBySignal(SIGSEGV), "mapped, the host has read-only");
}

TEST_F(HostAccess, ManyKernelsShareWhatTheyOpen) {
  const Page page(driver, 4 * granularity, device_memory(0, false));
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(must(Stream::create(driver)));
  const std::uint64_t part = page.word_count() / streams.size();
  for (std::uint32_t round = 0; round < 50; ++round)
    for (std::size_t i = 0; i < streams.size(); ++i)
      EXPECT_CU(
          launch(driver, kernel("fill_words"), streams[i].get(), page.words() + i * part, round, std::uint64_t{512}));
  EXPECT_CU(cu().cuCtxSynchronize());
  for (std::size_t i = 0; i < streams.size(); ++i) EXPECT_EQ(read(page.address() + i * part * 4, 1)[0], 49u);
}

TEST_F(HostAccess, ChangingTheAccessOfAPageThatAKernelUsesAborts) {
  constexpr unsigned started = 1, stop = 2, sum = 3;
  const char* message = "cuMemSetAccess changes .* while kernel 'read_until_flag' is using it";
  EXPECT_EXIT(
      {
        const Page page(driver, granularity, device_memory(0, false));
        EXPECT_CU(launch(driver, kernel("read_until_flag"), stream.get(), page.words(), std::uint64_t{64},
                         flags() + started, flags() + stop, flags() + sum));
        wait_until_set(started);
        (void)page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ);
      },
      KilledBySignal(SIGABRT), message);
}

TEST_F(HostAccess, UnmappingAPageThatAKernelUsesAborts) {
  constexpr unsigned started = 1, stop = 2, sum = 3;
  const char* message = "cuMemUnmap changes .* while kernel 'read_until_flag' is using it";
  EXPECT_EXIT(
      {
        const Page page(driver, granularity, device_memory(0, false));
        EXPECT_CU(launch(driver, kernel("read_until_flag"), stream.get(), page.words(), std::uint64_t{64},
                         flags() + started, flags() + stop, flags() + sum));
        wait_until_set(started);
        (void)cu().cuMemUnmap(page.address(), page.bytes());
      },
      KilledBySignal(SIGABRT), message);
}

TEST_F(UncheckedHostAccess, HostThreadsMayLookIntoDeviceMemory) {
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_CU(fill(page, 6, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_EQ(load(page.words()), 6u);
}

TEST_F(UncheckedHostAccess, AKernelThatWritesAReadOnlyPageIsStillStopped) {
  EXPECT_EXIT(
      {
        const Page page(driver, granularity, device_memory(0, false));
        EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
        EXPECT_CU(fill(page, 1, stream.get()));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      KilledBySignal(SIGSEGV), "kernel 'fill_words' on device 0 wrote to .* this device has read-only");
}

TEST_F(HostAccess, AKernelThatLeavesTheDriversMemoryIsNamed) {
  EXPECT_EXIT(
      {
        EXPECT_CU(launch(driver, kernel("fill_words"), stream.get(), reinterpret_cast<std::uint32_t*>(0x1000), 1u,
                         std::uint64_t{1}));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      KilledBySignal(SIGSEGV), "kernel 'fill_words' on device 0 wrote to 0x1000: not an address of the driver");
}

TEST_F(HostAccess, AKernelIsStoppedWhereTheSystemDoesNotOpenThePage) {
  EXPECT_EXIT(
      {
        alarm(60);  // in case it repeats the access forever
        const Page page(driver, granularity, device_memory(0, false));
        no_protection = true;
        EXPECT_CU(fill(page, 1, stream.get()));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      KilledBySignal(SIGSEGV),
      "kernel 'fill_words' on device 0 wrote to .*: mapped, but the system refuses to open the page to this device");
}

TEST_F(UncheckedHostAccess, AccessThatTheSystemRefusesStaysAsItWas) {
  const Page page(driver, granularity, device_memory(0, false));
  no_protection = true;
  EXPECT_EQ(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ), CUDA_ERROR_OPERATING_SYSTEM);
  no_protection = false;
  const CUmemLocation device = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READ).location;
  unsigned long long flags = 0;
  EXPECT_CU(cu().cuMemGetAccess(&flags, &device, page.address()));
  EXPECT_EQ(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_CU(fill(page, 4, stream.get()));
  EXPECT_TRUE(holds(page, 4));
}

void end_with_code_7(int) { _exit(7); }

// The handler must be installed first in its process, so that the driver finds it at its start.
TEST(FaultHandler, OtherFaultsGoToTheHandlerThatWasThereBefore) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, end_with_code_7);
        emulated_driver("");
        void* inaccessible = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        *static_cast<volatile int*>(inaccessible) = 1;
      },
      ExitedWithCode(7), "");
}

TEST_F(HostAccess, ACopyOverMixedPagesThatTheHostMayAccessAborts) {
  EXPECT_EXIT(
      {
        const Reservation range = must(Reservation::create(driver, 2 * granularity));
        const VmmHandle low = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
        const VmmHandle high = must(VmmHandle::create(driver, granularity, host_memory(0, false)));
        EXPECT_CU(cu().cuMemMap(range.begin(), granularity, 0, low.get(), 0));
        EXPECT_CU(cu().cuMemMap(range.begin() + granularity, granularity, 0, high.get(), 0));
        const CUmemAccessDesc desc = access_of_host(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        EXPECT_CU(cu().cuMemSetAccess(range.begin() + granularity, granularity, &desc, 1));
        const std::vector<std::byte> source(2 * granularity);
        (void)cu().cuMemcpyHtoDAsync(range.begin(), source.data(), source.size(), stream.get());
      },
      KilledBySignal(SIGABRT), "covers both device memory and HOST_NUMA memory that the host may access");
}

TEST_F(HostAccess, MemoryUnmappedUnderACopyIsAStickyErrorOfItsContext) {
  EXPECT_EXIT(
      {
        const Page target(driver, granularity, device_memory(0, false));
        const Page page(driver, granularity, device_memory(0, false));
        const Event event = must(Event::create(driver));
        const CUfunction wait = kernel("wait_for_flag");
        EXPECT_CU(close_gate(0, stream.get()));
        EXPECT_CU(cu().cuMemcpyDtoDAsync(target.address(), page.address(), 4096, stream.get()));
        EXPECT_CU(cu().cuMemUnmap(target.address(), granularity));
        open_gate(0);
        EXPECT_EQ(cu().cuStreamSynchronize(stream.get()), CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT_EQ(launch(driver, wait, stream.get(), flags()), CUDA_ERROR_ILLEGAL_ADDRESS);
        EXPECT_EQ(cu().cuEventQuery(event.get()), CUDA_ERROR_ILLEGAL_ADDRESS);
        CUdeviceptr address = 0;
        EXPECT_EQ(cu().cuMemAlloc(&address, 64), CUDA_ERROR_ILLEGAL_ADDRESS);
        _exit(testing::Test::HasFailure() ? 1 : 42);
      },
      ExitedWithCode(42), "");
}

TEST_F(HostAccess, ACopyThatHasToGuessWhatAnUnmappedAddressIsAborts) {
  EXPECT_EXIT(
      {
        const Reservation range = must(Reservation::create(driver, granularity));
        const PinnedBuffer target = must(PinnedBuffer::create(driver, 4096));
        (void)cu().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(target.data()), range.begin(), 4096, stream.get());
      },
      KilledBySignal(SIGABRT), "where nothing is mapped; the CUDA driver takes it for host memory and crashes");
}

TEST_F(HostAccess, AFillOverMixedPagesThatTheHostMayAccessIsRefused) {
  const Reservation range = must(Reservation::create(driver, 2 * granularity));
  const VmmHandle low = must(VmmHandle::create(driver, granularity, host_memory(0, false)));
  const VmmHandle high = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CU(cu().cuMemMap(range.begin(), granularity, 0, low.get(), 0));
  ASSERT_CU(cu().cuMemMap(range.begin() + granularity, granularity, 0, high.get(), 0));
  ASSERT_CU(cu().cuMemSetAccess(range.begin(), range.bytes(), &desc, 1));
  const CUmemAccessDesc host_desc = access_of_host(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CU(cu().cuMemSetAccess(range.begin(), granularity, &host_desc, 1));
  EXPECT_EQ(cu().cuMemsetD8Async(range.begin(), 1, range.bytes(), stream.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu().cuMemUnmap(range.begin(), range.bytes()));
}

TEST_F(HostAccess, WaitersOfAFaultedContextAreReleased) {
  const Page page(driver, granularity, device_memory(0, false));
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_CU(cu().cuMemsetD8Async(page.address(), 1, 4096, stream.get()));
  EXPECT_CU(cu().cuMemUnmap(page.address(), granularity));
  EXPECT_TRUE(event.record(stream.get()));
  open_gate(0);
  EXPECT_EQ(cu().cuEventSynchronize(event.get()), CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_CU(cu().cuDevicePrimaryCtxReset(0));
}

}  // namespace
}  // namespace vmem::gpu
