#include "gpu/device_info.hpp"

#include <gtest/gtest.h>

#include "gpu/driver_fixture.hpp"
#include "gpu/fault_injection.hpp"

namespace vmem::gpu {
namespace {

TEST(DeviceInfo, TellsWhatADeviceCanDo) {
  const DriverRef driver = emulated_driver("devices=2,hbm=512MiB,numa=2");
  const DeviceInfo info = must(query_device(*driver, 1));
  EXPECT_EQ(info.ordinal, 1);
  EXPECT_EQ(info.name, "vmem emulated GPU");
  EXPECT_EQ(info.memory_bytes, std::size_t{512} << 20);
  EXPECT_EQ(info.host_numa_node, 1);
  EXPECT_TRUE(info.vmm && info.host_vmm && info.posix_fd);
  EXPECT_EQ(info.device_granularity_bytes, std::size_t{2} << 20);
  EXPECT_EQ(info.host_granularity_bytes, std::size_t{2} << 20);
  EXPECT_GT(info.multiprocessors, 0);
}

TEST(DeviceInfo, DevicesHaveDifferentIdentities) {
  const DriverRef driver = emulated_driver("devices=2");
  const DeviceList list = must(query_devices(*driver));
  EXPECT_NE(list.devices[0].uuid, list.devices[1].uuid);
  EXPECT_NE(list.devices[0].pci_bus_id, list.devices[1].pci_bus_id);
}

TEST(DeviceInfo, ADeviceReachesItself) {
  const DriverRef driver = emulated_driver("devices=2,p2p=0-1:0");
  const DeviceList list = must(query_devices(*driver));
  EXPECT_EQ(list.peer_access, (std::vector<std::vector<bool>>{{true, false}, {false, true}}));
}

TEST(DeviceInfo, UuidsPrintAsInNvidiaSmi) {
  std::array<std::uint8_t, 16> uuid{};
  for (std::size_t i = 0; i < uuid.size(); ++i) uuid[i] = static_cast<std::uint8_t>(i * 17);
  EXPECT_EQ(format_uuid(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
}

TEST(DeviceInfo, FailuresAreReported) {
  FaultInjector injector(emulated_driver("devices=2"));
  for (const char* call :
       {"cuDeviceGet", "cuDeviceGetName", "cuDeviceGetUuid", "cuDeviceTotalMem", "cuDeviceCanAccessPeer"}) {
    injector.fail_nth(call, 1, CUDA_ERROR_UNKNOWN);
    const auto list = query_devices(*injector.driver());
    ASSERT_FALSE(list) << call;
    EXPECT_NE(list.error().message.find(call), std::string::npos);
  }
}

TEST(DeviceInfo, AnAbilityThatTheDriverDoesNotKnowIsAbsent) {
  FaultInjector injector(emulated_driver(""));
  // Query order: first the multiprocessor count, then virtual memory support.
  injector.fail_nth("cuDeviceGetAttribute", 2, CUDA_ERROR_INVALID_VALUE);
  const DeviceInfo info = must(query_device(*injector.driver(), 0));
  EXPECT_FALSE(info.vmm);
  EXPECT_EQ(info.device_granularity_bytes, 0u);
}

}  // namespace
}  // namespace vmem::gpu
