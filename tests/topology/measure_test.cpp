// Measures links of emulated machines with configured rates. A busy machine measures less, so upper
// bounds are exact and lower bounds are not checked.
#include "topology/measure.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "gpu/driver_fixture.hpp"
#include "gpu/fault_injection.hpp"
#include "topology/discover.hpp"
#include "topology/placement.hpp"

namespace vmem::topology {
namespace {

using gpu::emulated_driver;
using gpu::must;
using testing::Contains;
using testing::HasSubstr;

const MeasureOptions kQuick{.buffer_bytes = 4 << 20, .time_us = 1000, .on_step = {}};

// A copy takes at least its time on the links. The clock's rounding is far below a thousandth of
// that.
void expect_at_most(const Rate& rate, double gbps) {
  EXPECT_EQ(rate.origin, Origin::measured);
  EXPECT_GT(rate.bytes_per_s, 0);
  EXPECT_LE(rate.bytes_per_s, gbps * 1.001e9);
}

struct Machine {
  explicit Machine(const std::string& spec) : driver(emulated_driver(spec)), topology(must(discover(*driver))) {
    const Status done = measure(topology, driver, kQuick);
    EXPECT_TRUE(done) << done.error().message;
  }
  NodeIndex device(int ordinal) const { return *topology.find(NodeKind::device, ordinal); }
  NodeIndex host(int number) const { return *topology.find(NodeKind::host, number); }
  const Link& link(LinkKind kind, NodeIndex end) const {
    for (const Link& each : topology.links)
      if (each.kind == kind && each.b == end) return each;
    ADD_FAILURE() << "there is no such link";
    return topology.links.front();
  }
  gpu::DriverRef driver;
  Topology topology;
};

TEST(Measure, HostLinksInBothDirectionsAndTogether) {
  const Machine machine("h2d=0.4,d2h=0.2,duplex=0.5");
  const Link& link = machine.link(LinkKind::pcie, machine.device(0));
  expect_at_most(link.forward, 0.4);
  expect_at_most(link.backward, 0.2);
  expect_at_most(link.both, 0.5);
  EXPECT_TRUE(machine.topology.copy(machine.device(0), machine.device(0))->rate.known());
}

TEST(Measure, UnevenNVLinks) {
  const Machine machine("devices=3,p2p=0-1:0.4,p2p=0-2:0.2,p2p=1-2:0");
  expect_at_most(machine.topology.copy(machine.device(0), machine.device(1))->rate, 0.4);
  expect_at_most(machine.topology.copy(machine.device(2), machine.device(0))->rate, 0.2);
  EXPECT_EQ(machine.topology.copy(machine.device(1), machine.device(2)), nullptr);
  expect_at_most(machine.link(LinkKind::nvlink, machine.device(2)).backward, 0.2);
}

TEST(Measure, TheWayUpFromASharedSwitchUnderAllDevicesBelow) {
  const Machine machine("devices=3,nvlink=0,h2d=0.4,d2h=0.4,switch=0+2:0.5");
  const Link& link = machine.link(LinkKind::pcie, *machine.topology.find(NodeKind::pcie_switch, 0));
  expect_at_most(link.forward, 0.5);
  expect_at_most(link.backward, 0.5);
}

TEST(Measure, BothNumaNodesOfEachDevice) {
  const Machine machine("devices=2,numa=2,h2d=1,socket=0.2");
  expect_at_most(machine.topology.copy(machine.host(1), machine.device(0))->rate, 0.2);
  expect_at_most(machine.topology.copy(machine.host(1), machine.device(1))->rate, 1);
  EXPECT_TRUE(machine.topology.copy(machine.device(1), machine.host(0))->rate.known());
}

TEST(Measure, WhatCannotBeMadeIsLeftUnknownAndSaid) {
  const Machine machine("host_vmm=0");
  EXPECT_FALSE(machine.link(LinkKind::pcie, machine.device(0)).forward.known());
  EXPECT_TRUE(machine.topology.copies.front().rate.known());
  EXPECT_THAT(machine.topology.unknown, Contains(HasSubstr("rates of host node 0")));
}

TEST(Measure, AMachineWithoutUsableDevicesIsAnError) {
  const auto driver = emulated_driver("vmm=0");
  Topology topology = must(discover(*driver));
  const Status done = measure(topology, driver, kQuick);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("no device could be used"));
}

TEST(MeasureDirectory, ThatIsNotThereIsNamed) {
  Topology topology = must(discover(*emulated_driver("")));
  const Status done = measure_directory(topology, "/nonexistent/folder");
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message, HasSubstr("/nonexistent/folder"));
}

TEST(MeasureDirectory, BecomesADisk) {
  Topology topology = must(discover(*emulated_driver("")));
  const std::string folder = std::filesystem::current_path().string();
  const Status done = measure_directory(topology, folder, 8 << 20);
  if (!done) GTEST_SKIP() << done.error().message;  // not every file system has direct I/O
  ASSERT_EQ(topology.all(NodeKind::disk).size(), 1u);
  const Place last = places_by_rate(topology, 0).back();
  EXPECT_EQ(topology[last.memory].name, folder);
  EXPECT_TRUE(last.bytes_per_s());
  ASSERT_TRUE(measure_directory(topology, folder, 8 << 20));
  EXPECT_EQ(topology.all(NodeKind::disk).size(), 1u);
}

}  // namespace
}  // namespace vmem::topology
