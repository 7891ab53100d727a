// NVML's answers on emulated machines, through the table used for real ones.
#include "gpu/nvml.hpp"

#include <gtest/gtest.h>

#include "gpu/driver_fixture.hpp"

namespace vmem::gpu {
namespace {

std::vector<NvmlDevice> devices_of(const Nvml& nvml, int count) {
  std::vector<NvmlDevice> devices;
  for (int i = 0; i < count; ++i) devices.push_back(nvml.find("0000:0" + std::to_string(i + 1) + ":00.0").value());
  return devices;
}

TEST(NvmlTest, ListsTheNVLinksOfEachPair) {
  const auto nvml = must(Nvml::load(*emulated_driver("devices=3,p2p=0-1:100,p2p=0-2:30,p2p=1-2:0")));
  const auto links = nvml->active_links(devices_of(*nvml, 3)[0]);
  ASSERT_EQ(links.size(), 5u);
  EXPECT_EQ(links[0].remote, NvLink::Remote::gpu);
  EXPECT_EQ(links[0].bytes_per_s, 25e9);
  EXPECT_EQ(links[0].pci_bus_id, "00000000:02:00.0");
  EXPECT_EQ(links[4].pci_bus_id, "00000000:03:00.0");
}

TEST(NvmlTest, SaysWhatIsJoinedByNVLink) {
  const auto nvml = must(Nvml::load(*emulated_driver("devices=3,p2p=1-2:0")));
  const auto devices = devices_of(*nvml, 3);
  EXPECT_EQ(nvml->joined_by_nvlink(devices[0], devices[1]), true);
  EXPECT_EQ(nvml->joined_by_nvlink(devices[1], devices[2]), false);
}

TEST(NvmlTest, SaysWhereDevicesMeetOnPcie) {
  const auto nvml = must(Nvml::load(*emulated_driver("devices=3,switch=0+1:25")));
  const auto devices = devices_of(*nvml, 3);
  EXPECT_EQ(nvml->meeting(devices[0], devices[1]), PcieMeeting::one_switch);
  EXPECT_EQ(nvml->meeting(devices[0], devices[2]), PcieMeeting::host);
}

TEST(NvmlTest, AnswersNothingThatItDoesNotKnow) {
  const auto nvml = must(Nvml::load(*emulated_driver("nvlink=0,devices=2")));
  EXPECT_FALSE(nvml->find("0000:77:00.0"));
  const auto devices = devices_of(*nvml, 2);
  EXPECT_FALSE(nvml->pcie(devices[0]));
  EXPECT_TRUE(nvml->active_links(devices[0]).empty());
}

TEST(NvmlTest, ThatDoesNotStartSaysWhy) {
  const auto nvml = Nvml::load(*emulated_driver("nvml=0"));
  ASSERT_FALSE(nvml);
  EXPECT_EQ(nvml.error().message, "NVML does not start: Driver Not Loaded");
}

}  // namespace
}  // namespace vmem::gpu
