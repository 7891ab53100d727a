// Which daemons of this host a program maps HBM of, and why not the others.
#include "runtime/remote/found_lenders.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "topology/machines.hpp"

namespace vmem::runtime {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kBoot = "4f3a";

ClusterNode daemon(std::uint64_t id, const char* boot, std::uint64_t bytes) {
  ClusterNode node{.id = NodeId{id}, .record = {}};
  node.record.boot = boot;
  node.record.lends.hbm = bytes;
  node.record.mapped = {.socket = "/run/hbm", .gpu = "GPU-1", .bytes = bytes};
  return node;
}

TEST(FoundLenders, AreThoseOfThisHostThatHaveSomethingToMap) {
  ClusterView view;
  view.nodes = {daemon(9, kBoot, 64), daemon(3, "other", 64), daemon(5, kBoot, 0), daemon(2, kBoot, 32)};
  const auto found = lenders_on_host(view, kBoot);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0], (FoundLender{.node = NodeId{2}, .hbm = view.nodes[3].record.mapped}));
  EXPECT_EQ(found[1].node, NodeId{9});
  view.nodes = {daemon(9, "", 64)};
  EXPECT_TRUE(lenders_on_host(view, "").empty()) << "the boot is not known";
}

// GPUs 0 to 2 of a machine, all of which access each other; device 1's memory is lent.
struct UseOfALender : ::testing::Test {
  FoundLender lender{.node = NodeId{7}, .hbm = {.socket = "/run/hbm", .gpu = "GPU-1", .bytes = 64}};
  std::vector<VisibleGpu> visible{{0, "GPU-0", 3}, {1, "GPU-1", 3}, {2, "GPU-2", 3}};
  std::vector<int> devices{0, 2};
  topology::Topology machine;

  std::string why() const {
    const auto use = use_of(lender, visible, devices, machine);
    return use ? "" : use.error().message;
  }
  // Host links and NVLinks between all GPUs, of these rates in GB/s.
  void measure(double host, double nvlink) {
    machine = topology::host_nodes(1, 0);
    const auto fabric = machine.add({topology::NodeKind::nvlink_switch, 0, "", "", 0});
    for (int i = 0; i < 3; ++i) {
      const auto added =
          topology::add_device(machine, *machine.find(topology::NodeKind::root, 0), i == 0 ? 2 * host : host);
      machine.links.push_back(topology::join(added, fabric, topology::LinkKind::nvlink, nvlink));
    }
    topology::allow_all_peers(machine);
  }
};

TEST_F(UseOfALender, WithoutRatesAllDevicesUseIt) {
  const auto use = use_of(lender, visible, devices, machine);
  ASSERT_TRUE(use);
  EXPECT_EQ(use->ordinal, 1);
  EXPECT_EQ(use->used_by, 3u);
}

TEST_F(UseOfALender, AGpuThatIsNotVisibleIsNotUsed) {
  visible.erase(visible.begin() + 1);
  EXPECT_THAT(why(), AllOf(HasSubstr("does not see GPU-1"), HasSubstr("CUDA_VISIBLE_DEVICES")));
}

TEST_F(UseOfALender, AGpuOfTheProgramItselfIsNotUsed) {
  devices = {0, 1};
  EXPECT_THAT(why(), AllOf(HasSubstr("device 1, which this program uses itself"), HasSubstr("--devices")));
}

// A region of device 0 may be opened to device 2, whose accesses would then have no way there.
TEST_F(UseOfALender, AGpuThatOneOfTheDevicesDoesNotReachIsNotUsed) {
  visible[1].reached_by = 1;
  EXPECT_THAT(why(), HasSubstr("device 2 cannot access the memory of device 1"));
}

TEST_F(UseOfALender, OnlyDevicesToWhichItIsNotSlowerThanHostMemoryUseIt) {
  measure(25, 300);
  EXPECT_EQ(use_of(lender, visible, devices, machine)->used_by, 3u);
  measure(25, 30);  // device 0 has host memory at 50 GB/s
  EXPECT_EQ(use_of(lender, visible, devices, machine)->used_by, 2u);
  measure(25, 24.5);  // alike for device 2: measurements differ by as much
  EXPECT_EQ(use_of(lender, visible, devices, machine)->used_by, 2u);
  measure(25, 10);
  EXPECT_THAT(why(), AllOf(HasSubstr("measured at 10.0 GB/s, and host memory at 25.0 GB/s for device 2"),
                           HasSubstr("vmem topo --measure")));
}

}  // namespace
}  // namespace vmem::runtime
