// Copies and fills between all kinds of memory.
#include <numeric>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class Copies : public DriverTest {
 protected:
  CUmemAllocationProp host() const {
    int node = 0;
    cu().cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0);
    return host_memory(std::max(node, 0), false);
  }
  std::vector<std::uint32_t> counting(std::size_t words) const {
    std::vector<std::uint32_t> values(words);
    std::iota(values.begin(), values.end(), 1u);
    return values;
  }
  CUresult synchronize() { return cu().cuStreamSynchronize(stream.get()); }
};

// Two frames side by side in one range, each with its own kind of memory.
class Neighbours {
 public:
  Neighbours(const DriverRef& driver, std::size_t bytes, const CUmemAllocationProp& low,
             const CUmemAllocationProp& high)
      : driver_(driver), range_(must(Reservation::create(driver, 2 * bytes))) {
    const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    CUdeviceptr at = range_.begin();
    for (const auto& properties : {low, high}) {
      handles_.push_back(must(VmmHandle::create(driver, bytes, properties)));
      EXPECT_CU((*driver)->cuMemMap(at, bytes, 0, handles_.back().get(), 0));
      at += bytes;
    }
    EXPECT_CU((*driver)->cuMemSetAccess(range_.begin(), 2 * bytes, &desc, 1));
  }
  ~Neighbours() { (*driver_)->cuMemUnmap(range_.begin(), range_.bytes()); }
  Neighbours(const Neighbours&) = delete;
  Neighbours& operator=(const Neighbours&) = delete;
  CUdeviceptr address() const { return range_.begin(); }
  std::size_t bytes() const { return range_.bytes(); }

 private:
  DriverRef driver_;
  std::vector<VmmHandle> handles_;
  Reservation range_;
};

TEST_F(Copies, PinnedMemoryToDeviceAndBack) {
  const Page page(driver, granularity, device_memory(0, false));
  const PinnedBuffer source = must(PinnedBuffer::create(driver, page.bytes()));
  const PinnedBuffer target = must(PinnedBuffer::create(driver, page.bytes()));
  for (std::size_t i = 0; i < page.bytes(); ++i) source.data()[i] = static_cast<std::byte>(i * 7);
  EXPECT_CU(cu().cuMemcpyHtoDAsync(page.address(), source.data(), page.bytes(), stream.get()));
  EXPECT_CU(cu().cuMemcpyDtoHAsync(target.data(), page.address(), page.bytes(), stream.get()));
  EXPECT_CU(synchronize());
  EXPECT_TRUE(std::equal(source.data(), source.data() + page.bytes(), target.data()));
}

TEST_F(Copies, PageableMemoryIsCopiedWhenTheCallReturns) {
  const Page page(driver, granularity, device_memory(0, false));
  auto values = counting(page.word_count());
  const auto expected = values;
  EXPECT_CU(cu().cuMemcpyHtoDAsync(page.address(), values.data(), page.bytes(), stream.get()));
  std::fill(values.begin(), values.end(), 0);
  EXPECT_CU(cu().cuMemcpyDtoHAsync(values.data(), page.address(), page.bytes(), stream.get()));
  EXPECT_EQ(values, expected);
}

TEST_F(Copies, AUnifiedCopyFindsTheDirectionItself) {
  const Page a(driver, granularity, device_memory(0, false)), b(driver, granularity, device_memory(0, false));
  const auto values = counting(a.word_count());
  std::vector<std::uint32_t> result(values.size());
  EXPECT_CU(cu().cuMemcpyAsync(a.address(), reinterpret_cast<CUdeviceptr>(values.data()), a.bytes(), stream.get()));
  EXPECT_CU(cu().cuMemcpyAsync(b.address(), a.address(), a.bytes(), stream.get()));
  EXPECT_CU(cu().cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(result.data()), b.address(), a.bytes(), stream.get()));
  EXPECT_CU(synchronize());
  EXPECT_EQ(result, values);
}

TEST_F(Copies, OneCopySpansSeveralFrames) {
  const Neighbours pages(driver, granularity, device_memory(0, false), device_memory(0, false));
  const auto values = counting(pages.bytes() / 4);
  EXPECT_CU(cu().cuMemcpyHtoDAsync(pages.address(), values.data(), pages.bytes(), stream.get()));
  EXPECT_EQ(read(pages.address(), values.size()), values);
}

TEST_F(Copies, HostBackedPagesAreCopiedLikeOthers) {
  const Page page(driver, granularity, host());
  const auto values = counting(page.word_count());
  EXPECT_CU(cu().cuMemcpyHtoDAsync(page.address(), values.data(), page.bytes(), stream.get()));
  EXPECT_EQ(read(page), values);
}

// Holds only without host access to the host-backed pages; with it the driver crashes.
TEST_F(Copies, CopiesAndFillsMayMixDeviceAndHostBackedPages) {
  const Neighbours mixed(driver, granularity, device_memory(0, false), host());
  const auto values = counting(mixed.bytes() / 4);
  EXPECT_CU(cu().cuMemcpyHtoDAsync(mixed.address(), values.data(), mixed.bytes(), stream.get()));
  EXPECT_EQ(read(mixed.address(), values.size()), values);
  EXPECT_CU(cu().cuMemsetD32Async(mixed.address(), 3, values.size(), stream.get()));
  EXPECT_EQ(read(mixed.address() + granularity - 4, 2), (std::vector<std::uint32_t>{3, 3}));
}

TEST_F(Copies, DeviceToDeviceCopiesMayMixDeviceAndHostBackedPages) {
  const Neighbours mixed(driver, granularity, device_memory(0, false), host());
  const Neighbours plain(driver, granularity, device_memory(0, false), device_memory(0, false));
  const auto values = counting(plain.bytes() / 4);
  EXPECT_CU(cu().cuMemcpyHtoDAsync(plain.address(), values.data(), plain.bytes(), stream.get()));
  EXPECT_CU(cu().cuMemcpyDtoDAsync(mixed.address(), plain.address(), plain.bytes(), stream.get()));
  EXPECT_CU(cu().cuMemsetD8Async(plain.address(), 0, plain.bytes(), stream.get()));
  EXPECT_CU(cu().cuMemcpyDtoDAsync(plain.address(), mixed.address(), plain.bytes(), stream.get()));
  EXPECT_EQ(read(plain.address(), values.size()), values);
}

TEST_F(Copies, WorkOnMemoryThatIsNotThereIsRefusedWhenItIsQueued) {
  const Reservation hole = must(Reservation::create(driver, granularity));
  const Page page(driver, granularity, device_memory(0, false));
  const PinnedBuffer pinned = must(PinnedBuffer::create(driver, 4096));
  EXPECT_EQ(cu().cuMemcpyHtoDAsync(hole.begin(), pinned.data(), 4096, stream.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().cuMemcpyDtoDAsync(hole.begin(), page.address(), 4096, stream.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().cuMemsetD8Async(hole.begin(), 1, 4096, stream.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(synchronize());
}

TEST_F(Copies, WorkOnMemoryWithoutAccessIsRefusedWhenItIsQueued) {
  const Page page(driver, granularity, device_memory(0, false), -1);
  const PinnedBuffer pinned = must(PinnedBuffer::create(driver, 4096));
  EXPECT_EQ(cu().cuMemcpyHtoDAsync(page.address(), pinned.data(), 4096, stream.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(cu().cuMemsetD8Async(page.address(), 1, 4096, stream.get()), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(synchronize());
}

TEST_F(Copies, FillsSetBytesAndWords) {
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_CU(cu().cuMemsetD8Async(page.address(), 0xab, page.bytes(), stream.get()));
  EXPECT_TRUE(holds(page, 0xabababab));
  EXPECT_CU(cu().cuMemsetD32Async(page.address(), 0x01020304, page.word_count(), stream.get()));
  EXPECT_TRUE(holds(page, 0x01020304));
}

TEST_F(Copies, AnUnalignedWordFillIsRefused) {
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_EQ(cu().cuMemsetD32Async(page.address() + 1, 0, 4, stream.get()), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Copies, HostBackedPagesAreFilledLikeOthers) {
  const Page page(driver, granularity, host());
  EXPECT_CU(cu().cuMemsetD8Async(page.address(), 2, page.bytes(), stream.get()));
  EXPECT_TRUE(holds(page, 0x02020202));
}

TEST_F(Copies, CopiesOfNothingSucceed) {
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_CU(cu().cuMemcpyDtoDAsync(page.address(), page.address(), 0, stream.get()));
  EXPECT_CU(cu().cuMemsetD8Async(page.address(), 1, 0, stream.get()));
}

TEST_F(Copies, ABatchCopiesAllItsParts) {
  if (!cu().cuMemcpyBatchAsync) GTEST_SKIP() << "the driver has no batched copies";
  constexpr std::size_t parts = 8;
  const Page page(driver, granularity, device_memory(0, false));
  const PinnedBuffer pinned = must(PinnedBuffer::create(driver, parts * 4096));
  for (std::size_t i = 0; i < pinned.bytes(); ++i) pinned.data()[i] = static_cast<std::byte>(i / 4096 + 1);
  std::vector<CUdeviceptr> targets, sources;
  for (std::size_t i = 0; i < parts; ++i) {
    targets.push_back(page.address() + (parts - 1 - i) * 8192);
    sources.push_back(reinterpret_cast<CUdeviceptr>(pinned.data()) + i * 4096);
  }
  std::vector<std::size_t> sizes(parts, 4096);
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t index = 0;
  EXPECT_CU(cu().cuMemcpyBatchAsync(targets.data(), sources.data(), sizes.data(), parts, &attributes, &index, 1,
                                    stream.get()));
  for (std::size_t i = 0; i < parts; ++i)
    EXPECT_EQ(read(targets[i], 1)[0], 0x01010101u * static_cast<std::uint32_t>(i + 1));
}

TEST_F(Copies, ABatchNeedsAStreamOfItsOwn) {
  if (!cu().cuMemcpyBatchAsync) GTEST_SKIP() << "the driver has no batched copies";
  const Page page(driver, granularity, device_memory(0, false));
  CUdeviceptr target = page.address(), source = page.address() + 4096;
  std::size_t size = 4096, index = 0;
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  EXPECT_NE(cu().cuMemcpyBatchAsync(&target, &source, &size, 1, &attributes, &index, 1, nullptr), CUDA_SUCCESS);
}

TEST_F(Copies, AllocatedMemoryHoldsItsContentsUntilItIsFreed) {
  CUdeviceptr small = 0, large = 0;
  ASSERT_CU(cu().cuMemAlloc(&small, 1000));
  ASSERT_CU(cu().cuMemAlloc(&large, 3 * granularity));
  EXPECT_EQ(small % 256, 0u);
  EXPECT_CU(cu().cuMemsetD32Async(large, 4, 3 * granularity / 4, stream.get()));
  EXPECT_CU(cu().cuMemsetD32Async(small, 5, 250, stream.get()));
  EXPECT_EQ(read(large + 3 * granularity - 4, 1)[0], 4u);
  EXPECT_EQ(read(small + 996, 1)[0], 5u);
  EXPECT_CU(cu().cuMemFree(small));
  EXPECT_CU(cu().cuMemFree(large));
}

TEST_F(Copies, AllocatedMemoryKnowsItsRange) {
  CUdeviceptr address = 0, begin = 0;
  std::size_t bytes = 0;
  ASSERT_CU(cu().cuMemAlloc(&address, 2 * granularity));
  EXPECT_CU(cu().cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address + granularity));
  EXPECT_CU(cu().cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address + granularity));
  EXPECT_EQ(begin, address);
  EXPECT_EQ(bytes, 2 * granularity);
  EXPECT_CU(cu().cuMemFree(address));
}

TEST_F(Copies, StreamOrderedMemoryIsUsableInItsStream) {
  for (std::uint32_t i = 0; i < 20; ++i) {
    CUdeviceptr address = 0;
    ASSERT_CU(cu().cuMemAllocAsync(&address, granularity, stream.get()));
    EXPECT_CU(cu().cuMemsetD32Async(address, i, granularity / 4, stream.get()));
    EXPECT_EQ(read(address + granularity - 4, 1)[0], i);
    EXPECT_CU(cu().cuMemFreeAsync(address, stream.get()));
  }
  EXPECT_CU(synchronize());
}

TEST_F(Copies, PinnedMemoryIsReachableFromKernels) {
  const PinnedBuffer pinned = must(PinnedBuffer::create(driver, 4096));
  CUdeviceptr address = 0;
  ASSERT_CU(cu().cuMemHostGetDevicePointer(&address, pinned.data(), 0));
  auto* words = reinterpret_cast<std::uint32_t*>(address);
  EXPECT_CU(launch(driver, kernel("fill_words"), stream.get(), words, 3u, std::uint64_t{1024}));
  EXPECT_CU(synchronize());
  EXPECT_EQ(reinterpret_cast<std::uint32_t*>(pinned.data())[1023], 3u);
}

TEST_F(Copies, MemoryIsRegisteredOnce) {
  std::vector<std::byte> memory(3 * 4096);
  void* page = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory.data()) + 4095) / 4096 * 4096);
  EXPECT_CU(cu().cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_PORTABLE));
  EXPECT_EQ(cu().cuMemHostRegister(page, 4096, CU_MEMHOSTREGISTER_PORTABLE), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  unsigned type = 0;
  EXPECT_CU(cu().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, reinterpret_cast<CUdeviceptr>(page)));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  EXPECT_CU(cu().cuMemHostUnregister(page));
  EXPECT_EQ(cu().cuMemHostUnregister(page), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

class TwoDevices : public Copies {
 protected:
  void SetUp() override {
    int count = 0, reachable = 0;
    ASSERT_CU(cu().cuDeviceGetCount(&count));
    if (count < 2) GTEST_SKIP() << "the machine has one device";
    ASSERT_CU(cu().cuDeviceCanAccessPeer(&reachable, 0, 1));
    if (!reachable) GTEST_SKIP() << "device 0 does not reach device 1";
    Copies::SetUp();
    second = must(PrimaryContext::retain(driver, 1));
  }
  PrimaryContext second;
};

TEST_F(TwoDevices, AKernelWritesAPeersMemory) {
  const Page peer(driver, granularity, device_memory(1, false), 0);
  EXPECT_CU(fill(peer, 21, stream.get()));
  EXPECT_TRUE(holds(peer, 21));
}

TEST_F(TwoDevices, APeerCopyNeedsNoMapping) {
  const Page here(driver, granularity, device_memory(0, false), 0);
  const Page there(driver, granularity, device_memory(1, false), 1);
  EXPECT_CU(fill(here, 5, stream.get()));
  EXPECT_CU(cu().cuMemcpyPeerAsync(there.address(), second.context(), here.address(), context.context(), granularity,
                                   stream.get()));
  EXPECT_CU(cu().cuMemsetD8Async(here.address(), 0, granularity, stream.get()));
  EXPECT_CU(cu().cuMemcpyPeerAsync(here.address(), context.context(), there.address(), second.context(), granularity,
                                   stream.get()));
  EXPECT_TRUE(holds(here, 5));
}

TEST_F(TwoDevices, EventsOrderWorkAcrossDevices) {
  const Page page(driver, granularity, device_memory(1, false), 0);
  const CUmemAccessDesc both[] = {access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                                  access_of_device(1, CU_MEM_ACCESS_FLAGS_PROT_READWRITE)};
  ASSERT_CU(cu().cuMemSetAccess(page.address(), page.bytes(), both, 2));
  const Event event = must(Event::create(driver));
  EXPECT_CU(close_gate(0, stream.get()));
  EXPECT_CU(fill(page, 1, stream.get()));
  EXPECT_TRUE(event.record(stream.get()));
  {
    const ScopedContext on_second = must(ScopedContext::push(driver, second.context()));
    const Stream other = must(Stream::create(driver));
    EXPECT_CU(cu().cuStreamWaitEvent(other.get(), event.get(), CU_EVENT_WAIT_DEFAULT));
    EXPECT_CU(cu().cuMemsetD32Async(page.address(), 2, page.word_count(), other.get()));
    open_gate(0);
    EXPECT_TRUE(other.synchronize());
  }
  EXPECT_TRUE(holds(page, 2));
}

TEST_F(TwoDevices, EachDeviceHasItsOwnAccess) {
  EXPECT_ILLEGAL_ACCESS(
      {
        const Page theirs(driver, granularity, device_memory(1, false), 1);
        EXPECT_CU(fill(theirs, 1, stream.get()));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      "this device has no access");
}

}  // namespace
}  // namespace vmem::gpu
