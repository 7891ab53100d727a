// Virtual memory properties of a driver on which vmem relies. Runs on the emulated driver and on
// real GPUs.
#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

class VirtualMemory : public DriverTest {
 protected:
  CUmemAllocationProp host() const {
    int node = 0;
    cu().cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0);
    return host_memory(std::max(node, 0), false);
  }
  unsigned long long access_at(CUdeviceptr address) const {
    const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, 0};
    unsigned long long flags = ~0ull;
    EXPECT_CU(cu().cuMemGetAccess(&flags, &location, address));
    return flags;
  }
};

TEST_F(VirtualMemory, AKernelWritesWhatACopyReads) {
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_CU(fill(page, 0x12345678, stream.get()));
  EXPECT_TRUE(holds(page, 0x12345678));
}

TEST_F(VirtualMemory, AReleasedHandleLivesWhileItIsMapped) {
  VmmHandle handle = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  const Reservation range = must(Reservation::create(driver, granularity));
  ASSERT_CU(cu().cuMemMap(range.begin(), granularity, 0, handle.get(), 0));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CU(cu().cuMemSetAccess(range.begin(), granularity, &desc, 1));
  handle.reset();
  EXPECT_CU(cu().cuMemsetD32Async(range.begin(), 77, granularity / 4, stream.get()));
  EXPECT_EQ(read(range.begin(), 1)[0], 77u);
  EXPECT_CU(cu().cuMemUnmap(range.begin(), granularity));
}

TEST_F(VirtualMemory, OneFrameShowsTheSameBytesAtTwoAddresses) {
  const Page page(driver, granularity, device_memory(0, false));
  const Reservation alias = must(Reservation::create(driver, granularity));
  ASSERT_CU(cu().cuMemMap(alias.begin(), granularity, 0, page.handle().get(), 0));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CU(cu().cuMemSetAccess(alias.begin(), granularity, &desc, 1));
  EXPECT_CU(fill(page, 5, stream.get()));
  EXPECT_EQ(read(alias.begin(), 4), (std::vector<std::uint32_t>{5, 5, 5, 5}));
  EXPECT_CU(cu().cuMemsetD32Async(alias.begin(), 6, granularity / 4, stream.get()));
  EXPECT_TRUE(holds(page, 6));
  EXPECT_CU(cu().cuMemUnmap(alias.begin(), granularity));
}

TEST_F(VirtualMemory, ContentsSurviveRemappingElsewhere) {
  Page page(driver, granularity, device_memory(0, false));
  EXPECT_CU(fill(page, 9, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  const Reservation other = must(Reservation::create(driver, granularity));
  ASSERT_CU(cu().cuMemUnmap(page.address(), granularity));
  ASSERT_CU(cu().cuMemMap(other.begin(), granularity, 0, page.handle().get(), 0));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READ);
  ASSERT_CU(cu().cuMemSetAccess(other.begin(), granularity, &desc, 1));
  EXPECT_EQ(read(other.begin(), 2), (std::vector<std::uint32_t>{9, 9}));
  EXPECT_CU(cu().cuMemUnmap(other.begin(), granularity));
}

TEST_F(VirtualMemory, MappingOverAMappingFails) {
  const Page page(driver, granularity, device_memory(0, false));
  const VmmHandle other = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  EXPECT_NE(cu().cuMemMap(page.address(), granularity, 0, other.get(), 0), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, AHandleIsMappedWholeOrNotAtAll) {
  const VmmHandle handle = must(VmmHandle::create(driver, 2 * granularity, device_memory(0, false)));
  const Reservation range = must(Reservation::create(driver, 4 * granularity));
  EXPECT_NE(cu().cuMemMap(range.begin(), granularity, granularity, handle.get(), 0), CUDA_SUCCESS);
  EXPECT_NE(cu().cuMemMap(range.begin(), 4 * granularity, 0, handle.get(), 0), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, APartOfAMappingCannotBeUnmapped) {
  const Page page(driver, 2 * granularity, device_memory(0, false));
  EXPECT_NE(cu().cuMemUnmap(page.address(), granularity), CUDA_SUCCESS);
  EXPECT_CU(fill(page, 3, stream.get()));
  EXPECT_TRUE(holds(page, 3));
}

TEST_F(VirtualMemory, OneUnmapCoversSeveralMappings) {
  const Reservation range = must(Reservation::create(driver, 2 * granularity));
  const VmmHandle a = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  const VmmHandle b = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  ASSERT_CU(cu().cuMemMap(range.begin(), granularity, 0, a.get(), 0));
  ASSERT_CU(cu().cuMemMap(range.begin() + granularity, granularity, 0, b.get(), 0));
  EXPECT_CU(cu().cuMemUnmap(range.begin(), 2 * granularity));
  EXPECT_CU(cu().cuMemMap(range.begin(), granularity, 0, b.get(), 0));
  EXPECT_CU(cu().cuMemUnmap(range.begin(), granularity));
}

TEST_F(VirtualMemory, UnmappingARangeWithGapsUnmapsWhatIsThere) {
  const Reservation range = must(Reservation::create(driver, 3 * granularity));
  const VmmHandle handle = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  ASSERT_CU(cu().cuMemMap(range.begin() + granularity, granularity, 0, handle.get(), 0));
  EXPECT_CU(cu().cuMemUnmap(range.begin(), 3 * granularity));
  EXPECT_CU(cu().cuMemMap(range.begin() + granularity, granularity, 0, handle.get(), 0));
  EXPECT_CU(cu().cuMemUnmap(range.begin() + granularity, granularity));
}

TEST_F(VirtualMemory, AccessIsSetForWholeMappingsWithoutGaps) {
  const Reservation range = must(Reservation::create(driver, 3 * granularity));
  const VmmHandle handle = must(VmmHandle::create(driver, 2 * granularity, device_memory(0, false)));
  ASSERT_CU(cu().cuMemMap(range.begin(), 2 * granularity, 0, handle.get(), 0));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_EQ(cu().cuMemSetAccess(range.begin(), granularity, &desc, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().cuMemSetAccess(range.begin(), 3 * granularity, &desc, 1), CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu().cuMemSetAccess(range.begin(), 2 * granularity, &desc, 1));
  EXPECT_CU(cu().cuMemUnmap(range.begin(), 2 * granularity));
}

TEST_F(VirtualMemory, MappingNeedsNoCurrentContext) {
  const Page page(driver, granularity, device_memory(0, false));
  ASSERT_CU(cu().cuCtxSetCurrent(nullptr));
  EXPECT_CU(cu().cuMemUnmap(page.address(), granularity));
  EXPECT_CU(cu().cuMemMap(page.address(), granularity, 0, page.handle().get(), 0));
  EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_CU(cu().cuCtxSetCurrent(context.context()));
}

TEST_F(VirtualMemory, APointersRangeIsItsReservation) {
  const Reservation range = must(Reservation::create(driver, 4 * granularity));
  const VmmHandle handle = must(VmmHandle::create(driver, granularity, device_memory(0, false)));
  const CUdeviceptr at = range.begin() + 2 * granularity;
  ASSERT_CU(cu().cuMemMap(at, granularity, 0, handle.get(), 0));
  const CUmemAccessDesc desc = access_of_device(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_CU(cu().cuMemSetAccess(at, granularity, &desc, 1));
  CUdeviceptr begin = 0;
  std::size_t bytes = 0;
  EXPECT_CU(cu().cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at + 5));
  EXPECT_CU(cu().cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at + 5));
  EXPECT_EQ(begin, range.begin());
  EXPECT_EQ(bytes, range.bytes());
  EXPECT_EQ(cu().cuPointerGetAttribute(&begin, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, range.begin()),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_CU(cu().cuMemUnmap(at, granularity));
}

TEST_F(VirtualMemory, AReservationWithAMappingCannotBeFreed) {
  const Page page(driver, granularity, device_memory(0, false));
  EXPECT_NE(cu().cuMemAddressFree(page.address(), granularity), CUDA_SUCCESS);
  EXPECT_CU(fill(page, 1, stream.get()));
  EXPECT_TRUE(holds(page, 1));
}

TEST_F(VirtualMemory, AccessIsNoneUntilItIsSet) {
  const Page page(driver, granularity, device_memory(0, false), -1);
  EXPECT_EQ(access_at(page.address()), CU_MEM_ACCESS_FLAGS_PROT_NONE);
  EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
  EXPECT_EQ(access_at(page.address()), CU_MEM_ACCESS_FLAGS_PROT_READ);
  EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
  EXPECT_EQ(access_at(page.address()), CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
}

TEST_F(VirtualMemory, SizesAreMultiplesOfTheGranularity) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = device_memory(0, false);
  EXPECT_EQ(cu().cuMemCreate(&handle, granularity / 2, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cu().cuMemCreate(&handle, 0, &properties, 0), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr address = 0;
  EXPECT_EQ(cu().cuMemAddressReserve(&address, granularity + 4096, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(VirtualMemory, MemoryOfAnUnknownDeviceCannotBeCreated) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = device_memory(1000, false);
  EXPECT_NE(cu().cuMemCreate(&handle, granularity, &properties, 0), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, MoreThanTheDeviceHasIsOutOfMemory) {
  std::size_t total = 0;
  ASSERT_CU(cu().cuDeviceTotalMem(&total, 0));
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp properties = device_memory(0, false);
  const std::size_t bytes = (total / granularity + 1) * granularity;
  EXPECT_EQ(cu().cuMemCreate(&handle, bytes, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_F(VirtualMemory, CreatedMemoryIsMissingFromTheFreeMemory) {
  std::size_t before = 0, during = 0, total = 0;
  ASSERT_CU(cu().cuMemGetInfo(&before, &total));
  const Page page(driver, 16 * granularity, device_memory(0, false));
  ASSERT_CU(cu().cuMemGetInfo(&during, &total));
  EXPECT_GE(before - during, 16 * granularity);
}

TEST_F(VirtualMemory, AReservationBeginsWhereItIsAsked) {
  CUdeviceptr address = 0;
  const std::size_t bytes = 64 * granularity;
  {
    const Reservation probe = must(Reservation::create(driver, bytes));
    address = probe.begin();
  }
  const Reservation range = must(Reservation::create(driver, bytes, 0, address));
  EXPECT_EQ(range.begin(), address);
}

TEST_F(VirtualMemory, AReservationIsAlignedAsAsked) {
  const std::size_t alignment = std::size_t{1} << 30;
  const Reservation range = must(Reservation::create(driver, granularity, alignment));
  EXPECT_EQ(range.begin() % alignment, 0u);
}

TEST_F(VirtualMemory, AHandleKnowsItsLocation) {
  const VmmHandle handle = must(VmmHandle::create(driver, granularity, device_memory(0, true)));
  CUmemAllocationProp properties{};
  ASSERT_CU(cu().cuMemGetAllocationPropertiesFromHandle(&properties, handle.get()));
  EXPECT_EQ(properties.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(properties.location.id, 0);
  EXPECT_EQ(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

TEST_F(VirtualMemory, HostMemoryIsSharedByKernelAndHost) {
  const CUmemAllocationProp properties = host();
  const Page page(driver, granularity, properties);
  const CUmemAccessDesc desc = access_of_host(properties.location.id, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  ASSERT_CU(cu().cuMemSetAccess(page.address(), page.bytes(), &desc, 1));
  page.words()[0] = 40;
  EXPECT_CU(launch(driver, kernel("add_words"), stream.get(), page.words(), 2u, std::uint64_t{1}));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_EQ(page.words()[0], 42u);
}

TEST_F(VirtualMemory, HostAccessToDeviceMemoryIsRefused) {
  const Page page(driver, granularity, device_memory(0, false));
  const CUmemAccessDesc desc = access_of_host(0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  EXPECT_NE(cu().cuMemSetAccess(page.address(), page.bytes(), &desc, 1), CUDA_SUCCESS);
}

TEST_F(VirtualMemory, HostBackedPagesAreHostMemoryToPointerQueries) {
  const Page on_device(driver, granularity, device_memory(0, false));
  const Page on_host(driver, granularity, host());
  unsigned type = 0;
  EXPECT_CU(cu().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_device.address() + 100));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_CU(cu().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, on_host.address() + 100));
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_HOST});
  int ordinal = -1;
  EXPECT_CU(cu().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, on_device.address()));
  EXPECT_EQ(ordinal, 0);
}

TEST_F(VirtualMemory, APointerThatNobodyAllocatedHasNoAttributes) {
  int on_stack = 0;
  unsigned type = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(&on_stack);
  EXPECT_EQ(cu().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address), CUDA_ERROR_INVALID_VALUE);
}

// A page is read-only while it is copied out, and becomes writable again on demand. Its access
// changes only between the kernels that use it: on a GPU, any change under a running kernel
// occasionally makes that kernel fault.
TEST_F(VirtualMemory, AccessIsLoweredAndRaisedBetweenKernelsWhileOthersRun) {
  constexpr unsigned started = 1, stop = 2, sum = 3;
  const Page busy(driver, granularity, device_memory(0, false));
  const Page page(driver, granularity, device_memory(0, false));
  const Page target(driver, granularity, device_memory(0, false));
  const Stream other = must(Stream::create(driver));
  EXPECT_CU(fill(busy, 1, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_CU(launch(driver, kernel("read_until_flag"), other.get(), busy.words(), std::uint64_t{64}, flags() + started,
                   flags() + stop, flags() + sum));
  wait_until_set(started);
  for (std::uint32_t round = 1; round <= 20; ++round) {
    EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    EXPECT_CU(fill(page, round, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
    EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
    EXPECT_CU(launch(driver, kernel("copy_words"), stream.get(), target.words(), page.words(), std::uint64_t{64}));
    EXPECT_EQ(read(target.address(), 1)[0], round);
  }
  open_gate(stop);
  EXPECT_CU(cu().cuStreamSynchronize(other.get()));
  EXPECT_EQ(flags()[sum], 64u);
}

TEST_F(VirtualMemory, PagesAreRemappedWhileAKernelReadsOthers) {
  constexpr unsigned started = 1, stop = 2, sum = 3;
  const Page read_page(driver, granularity, device_memory(0, false));
  const Stream other = must(Stream::create(driver));
  EXPECT_CU(fill(read_page, 1, stream.get()));
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_CU(launch(driver, kernel("read_until_flag"), other.get(), read_page.words(), std::uint64_t{64},
                   flags() + started, flags() + stop, flags() + sum));
  wait_until_set(started);
  for (std::uint32_t i = 0; i < 50; ++i) {
    const Page page(driver, granularity, device_memory(0, false));
    EXPECT_CU(fill(page, i, stream.get()));
    EXPECT_TRUE(holds(page, i));
  }
  open_gate(stop);
  EXPECT_CU(cu().cuStreamSynchronize(other.get()));
  EXPECT_EQ(flags()[sum], 64u);
}

TEST_F(VirtualMemory, AKernelThatWritesAReadOnlyPageIsStopped) {
  EXPECT_ILLEGAL_ACCESS(
      {
        const Page page(driver, granularity, device_memory(0, false));
        EXPECT_CU(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ));
        EXPECT_CU(fill(page, 1, stream.get()));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      "kernel 'fill_words' on device 0 wrote to 0x[0-9a-f]+: mapped, this device has read-only");
}

TEST_F(VirtualMemory, AKernelThatReadsAnUnmappedPageIsStopped) {
  EXPECT_ILLEGAL_ACCESS(
      {
        const Page target(driver, granularity, device_memory(0, false));
        const Reservation hole = must(Reservation::create(driver, granularity));
        const auto* source = reinterpret_cast<const std::uint32_t*>(hole.begin());
        EXPECT_CU(launch(driver, kernel("copy_words"), stream.get(), target.words(), source, std::uint64_t{1}));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      "kernel 'copy_words' on device 0 read 0x[0-9a-f]+: reserved, nothing is mapped there");
}

TEST_F(VirtualMemory, AKernelThatReadsAPageWithoutAccessIsStopped) {
  EXPECT_ILLEGAL_ACCESS(
      {
        const Page target(driver, granularity, device_memory(0, false));
        const Page source(driver, granularity, device_memory(0, false), -1);
        EXPECT_CU(launch(driver, kernel("copy_words"), stream.get(), target.words(), source.words(), std::uint64_t{1}));
        (void)cu().cuStreamSynchronize(stream.get());
      },
      "mapped, this device has no access");
}

}  // namespace
}  // namespace vmem::gpu
