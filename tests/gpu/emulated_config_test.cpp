// The emulated machine matches its configuration.
#include <dlfcn.h>
#include <sys/resource.h>

#include <csignal>

#include "gpu/device_info.hpp"
#include "gpu/driver_fixture.hpp"
#include "gpu/emu/emu.h"

namespace vmem::gpu {
namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

std::string configure_error(const DriverRef& driver, const char* spec) {
  void* library = dlopen(driver->path().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto configure = reinterpret_cast<decltype(&vmem_emu_configure)>(dlsym(library, "vmem_emu_configure"));
  char error[512] = {};
  return configure(spec, error, sizeof error) == 0 ? "" : error;
}

CUresult create(const DriverRef& driver, std::size_t bytes, const CUmemAllocationProp& properties, VmmHandle& out) {
  auto handle = VmmHandle::create(driver, bytes, properties);
  if (!handle) return static_cast<CUresult>(handle.error().native);
  out = std::move(*handle);
  return CUDA_SUCCESS;
}

TEST(EmulatedConfig, SetsDevicesMemoryAndVersion) {
  const DriverRef driver = emulated_driver("devices=3,hbm=256MiB,version=13010");
  const DeviceList list = must(query_devices(*driver));
  ASSERT_EQ(list.devices.size(), 3u);
  EXPECT_EQ(list.devices[2].memory_bytes, 256 * mib);
  int version = 0;
  EXPECT_CU((*driver)->cuDriverGetVersion(&version));
  EXPECT_EQ(version, 13010);
}

TEST(EmulatedConfig, CuFileHasThreeSettings) {
  const DriverRef driver = emulated_driver("");
  for (const char* spec : {"cufile=none", "cufile=compat", "cufile=direct"})
    EXPECT_EQ(configure_error(driver, spec), "");
  EXPECT_NE(configure_error(driver, "cufile=1").find("'1' is not a value of 'cufile'"), std::string::npos);
}

TEST(EmulatedConfig, EachCallReplacesTheOneBefore) {
  emulated_driver("devices=3");
  const DriverRef driver = emulated_driver("hbm=256MiB");
  EXPECT_EQ(must(query_devices(*driver)).devices.size(), 1u);
}

TEST(EmulatedConfig, ConnectsDevicesAsTold) {
  const DriverRef driver = emulated_driver("devices=3,p2p=0-2:0");
  const DeviceList list = must(query_devices(*driver));
  EXPECT_TRUE(list.peer_access[0][1]);
  EXPECT_TRUE(list.peer_access[1][2]);
  EXPECT_FALSE(list.peer_access[0][2]);
  EXPECT_FALSE(list.peer_access[2][0]);
}

TEST(EmulatedConfig, DevicesThatAreNotConnectedCannotMapEachOthersMemory) {
  const DriverRef driver = emulated_driver("devices=2,p2p=0-1:0");
  const Page page(driver, 2 * mib, device_memory(1, false), 1);
  EXPECT_NE(page.set_access(CU_MEM_ACCESS_FLAGS_PROT_READ, 0), CUDA_SUCCESS);
}

TEST(EmulatedConfig, DevicesAreNearTheirNodes) {
  const DriverRef driver = emulated_driver("devices=4,numa=2,near=3:0");
  const auto devices = must(query_devices(*driver)).devices;
  EXPECT_EQ(devices[0].host_numa_node, 0);
  EXPECT_EQ(devices[2].host_numa_node, 1);
  EXPECT_EQ(devices[3].host_numa_node, 0);
}

TEST(EmulatedConfig, MachinesOfOtherShapesHaveOtherDevices) {
  const auto first = must(query_device(*emulated_driver("devices=2"), 0)).uuid;
  EXPECT_NE(must(query_device(*emulated_driver("devices=2,h2d=5"), 0)).uuid, first);
  EXPECT_EQ(must(query_device(*emulated_driver("devices=2"), 0)).uuid, first);
}

TEST(EmulatedConfig, WithoutVirtualMemoryNothingIsCreated) {
  const DriverRef driver = emulated_driver("vmm=0");
  const DeviceInfo info = must(query_device(*driver, 0));
  EXPECT_FALSE(info.vmm);
  EXPECT_FALSE(info.host_vmm);
  VmmHandle handle;
  EXPECT_EQ(create(driver, 2 * mib, device_memory(0, false), handle), CUDA_ERROR_NOT_SUPPORTED);
}

TEST(EmulatedConfig, WithoutHostVirtualMemoryOnlyDeviceMemoryIsCreated) {
  const DriverRef driver = emulated_driver("host_vmm=0");
  EXPECT_FALSE(must(query_device(*driver, 0)).host_vmm);
  VmmHandle handle;
  EXPECT_EQ(create(driver, 2 * mib, host_memory(0, false), handle), CUDA_ERROR_NOT_SUPPORTED);
  EXPECT_CU(create(driver, 2 * mib, device_memory(0, false), handle));
}

TEST(EmulatedConfig, ErrorsNameTheKeyAndTheValue) {
  const DriverRef driver = emulated_driver("");
  EXPECT_NE(configure_error(driver, "hmb=1GiB").find("'hmb'"), std::string::npos);
  EXPECT_NE(configure_error(driver, "hbm=lots").find("'lots'"), std::string::npos);
  for (const char* spec : {"devices=0", "devices=17", "hbm=3MiB", "hbm=-1GiB", "h2d=fast", "p2p=0-0:1", "vmm=2", "vmm",
                           "switch=0+1", "switch=0+0:1", "switch=0+1:1,switch=1+2:1", "near=0", "near=0:64", "nvml=2"})
    EXPECT_NE(configure_error(driver, spec), "") << spec;
}

TEST(EmulatedConfig, AMachineInUseIsNotReplaced) {
  const DriverRef driver = emulated_driver("");
  {
    const Reservation range = must(Reservation::create(driver, 2 * mib));
    EXPECT_NE(configure_error(driver, "devices=2").find("in use"), std::string::npos);
  }
  EXPECT_EQ(configure_error(driver, "devices=2"), "");
}

class Budget : public DriverTest {
 protected:
  Budget() : DriverTest(emulated_driver("hbm=64MiB,host=32MiB")) {}
  std::size_t free_bytes() {
    std::size_t free = 0, total = 0;
    EXPECT_CU(cu().cuMemGetInfo(&free, &total));
    EXPECT_EQ(total, 64 * mib);
    return free;
  }
};

TEST_F(Budget, DeviceMemoryEndsAtTheBudget) {
  VmmHandle a, b;
  EXPECT_CU(create(driver, 48 * mib, device_memory(0, false), a));
  EXPECT_EQ(free_bytes(), 16 * mib);
  EXPECT_EQ(create(driver, 18 * mib, device_memory(0, false), b), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_CU(create(driver, 16 * mib, device_memory(0, true), b));
  EXPECT_EQ(free_bytes(), 0u);
  a.reset();
  EXPECT_EQ(free_bytes(), 48 * mib);
}

TEST_F(Budget, MemoryStillMappedStillCounts) {
  const Reservation range = must(Reservation::create(driver, 8 * mib));
  {
    const VmmHandle handle = must(VmmHandle::create(driver, 8 * mib, device_memory(0, false)));
    EXPECT_CU(cu().cuMemMap(range.begin(), 8 * mib, 0, handle.get(), 0));
  }
  EXPECT_EQ(free_bytes(), 56 * mib);
  EXPECT_CU(cu().cuMemUnmap(range.begin(), 8 * mib));
  EXPECT_EQ(free_bytes(), 64 * mib);
}

TEST_F(Budget, ScatteredMemoryIsUsable) {
  std::vector<VmmHandle> handles(32);
  for (VmmHandle& handle : handles) ASSERT_CU(create(driver, 2 * mib, device_memory(0, false), handle));
  for (std::size_t i = 0; i < handles.size(); i += 2) handles[i].reset();
  VmmHandle large;
  EXPECT_CU(create(driver, 32 * mib, device_memory(0, false), large));
}

// Without room for the file that the frames share, each frame has its own.
TEST_F(Budget, MemoryWithAFileOfItsOwnIsExportableOnlyIfCreatedSo) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit lower{64 * mib, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &lower), 0);
  VmmHandle handle, exportable;
  EXPECT_CU(create(driver, 2 * mib, device_memory(0, false), handle));
  EXPECT_CU(create(driver, 2 * mib, device_memory(0, true), exportable));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_FALSE(handle.export_fd());
  CUmemAllocationProp properties{};
  EXPECT_CU(cu().cuMemGetAllocationPropertiesFromHandle(&properties, handle.get()));
  EXPECT_EQ(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
  EXPECT_CU(cu().cuMemGetAllocationPropertiesFromHandle(&properties, exportable.get()));
  EXPECT_EQ(properties.requestedHandleTypes, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

TEST_F(Budget, FreshMemoryIsZero) {
  {
    const Page page(driver, 4 * mib, device_memory(0, false));
    EXPECT_CU(fill(page, 0xffffffff, stream.get()));
    EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  }
  const Page page(driver, 4 * mib, device_memory(0, false));
  EXPECT_TRUE(holds(page, 0));
}

TEST_F(Budget, PinnedAndHostBackedMemoryShareOneLimit) {
  const PinnedBuffer pinned = must(PinnedBuffer::create(driver, 16 * mib));
  VmmHandle handle;
  EXPECT_EQ(create(driver, 16 * mib, host_memory(0, false), handle),
            CUDA_ERROR_OUT_OF_MEMORY);  // the flags take a page
  EXPECT_CU(create(driver, 14 * mib, host_memory(0, false), handle));
  EXPECT_FALSE(PinnedBuffer::create(driver, 4 * mib));
}

TEST_F(Budget, SmallAllocationsShareGranules) {
  std::vector<CUdeviceptr> small(100);
  for (CUdeviceptr& address : small) ASSERT_CU(cu().cuMemAlloc(&address, 1000));
  EXPECT_EQ(free_bytes(), 62 * mib);
  for (const CUdeviceptr address : small) EXPECT_CU(cu().cuMemFree(address));
  EXPECT_EQ(free_bytes(), 64 * mib);
  EXPECT_EQ(cu().cuMemFree(small[0]), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(Budget, StreamOrderedFreesAreReusedBeforeMemoryRunsOut) {
  for (int i = 0; i < 10; ++i) {
    CUdeviceptr address = 0;
    ASSERT_CU(cu().cuMemAllocAsync(&address, 40 * mib, stream.get()));
    ASSERT_CU(cu().cuMemFreeAsync(address, stream.get()));
  }
  EXPECT_CU(cu().cuStreamSynchronize(stream.get()));
  EXPECT_EQ(free_bytes(), 64 * mib);
  CUdeviceptr other_size = 0;
  EXPECT_CU(cu().cuMemAlloc(&other_size, 60 * mib));
  EXPECT_CU(cu().cuMemFree(other_size));
}

}  // namespace
}  // namespace vmem::gpu
