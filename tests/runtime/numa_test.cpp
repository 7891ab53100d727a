// Pinned memory is on the NUMA node that the topology names: the device's own, or one with better
// measured links.
#include <gtest/gtest.h>

#include <cstdio>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/emulated_gpu.hpp"
#include "runtime/runtime.hpp"
#include "topology/cache.hpp"
#include "topology/discover.hpp"

namespace vmem::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

decltype(&cuMemCreate) real_create = nullptr;
std::mutex seen_mutex;
std::set<int> seen_nodes;  // protected by seen_mutex

CUresult note_node(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* where,
                   unsigned long long flags) {
  if (where->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) {
    const std::lock_guard lock(seen_mutex);
    seen_nodes.insert(where->location.id);
  }
  return real_create(handle, bytes, where, flags);
}

// The nodes on which a program that exceeds its HBM pins memory.
std::set<int> pinned_on(const EmulatedGpu& gpu, const std::string& topology = "off") {
  gpu::DriverTable table = gpu.cu();
  real_create = table.cuMemCreate;
  table.cuMemCreate = note_node;
  seen_nodes.clear();
  Options options;
  options.space_bytes = 4096 * kMiB;
  options.hbm_bytes = 32 * kMiB;
  options.host_bytes = 96 * kMiB;
  options.devices = {0};
  options.topology = topology;
  auto runtime = runtime::Runtime::create(options, gpu::Driver::over(table, true, gpu.driver()->path()));
  EXPECT_TRUE(runtime) << runtime.error().message;
  if (!runtime) return {};
  const std::vector<std::byte> bytes(64 * kMiB, std::byte{7});
  const auto memory = (*runtime)->allocations().allocate(bytes.size(), 0, nullptr);
  EXPECT_TRUE(memory && (*runtime)->copies().write(*memory, bytes.data(), bytes.size()));
  EXPECT_TRUE((*runtime)->shut_down());
  runtime->reset();
  return seen_nodes;
}

TEST(PinnedMemory, IsOnTheDevicesOwnNumaNode) {
  EXPECT_EQ(pinned_on(EmulatedGpu("numa=3,near=0:2")), std::set<int>{2});
  EXPECT_EQ(pinned_on(EmulatedGpu("numa=3,near=0:1")), std::set<int>{1});
}

TEST(PinnedMemory, IsWhereMeasuredLinksAreFaster) {
  const EmulatedGpu gpu("devices=3,numa=2,near=0:1");
  auto topology = topology::discover(*gpu.driver());
  const auto key = topology::machine_key(*gpu.driver());
  ASSERT_TRUE(topology && key);
  const auto device = *topology->find(topology::NodeKind::device, 0);
  for (const int node : {0, 1}) {
    const auto host = *topology->find(topology::NodeKind::host, node);
    const topology::Rate rate{node == 0 ? 50e9 : 20e9, topology::Origin::measured};
    topology->set_copy(host, device, rate);
    topology->set_copy(device, host, rate);
  }
  const std::string file = testing::TempDir() + "vmem-numa-test.json";
  ASSERT_TRUE(topology::save(file, {*key, "", *topology}));
  EXPECT_EQ(pinned_on(gpu, file), std::set<int>{0});
  std::remove(file.c_str());
}

}  // namespace
}  // namespace vmem::test
