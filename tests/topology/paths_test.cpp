// The best path equals the result of an exhaustive search, and load slows it as the sharing rules
// say.
#include "topology/paths.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "topology/machines.hpp"

namespace vmem::topology {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

struct Best {
  double width = 0;
  std::size_t steps = 0;
};

// Tries every path that visits no node twice and passes through no memory, over NVLinks alone or
// all links.
class EveryPath {
 public:
  EveryPath(const Topology& topology, NodeIndex from, NodeIndex to, bool nvlink_only)
      : topology_(topology), from_(from), to_(to), nvlink_only_(nvlink_only) {
    visit(from, kUnlimited, 0);
  }
  Best best;

 private:
  void visit(NodeIndex node, double width, std::size_t steps) {
    if (node == to_) {
      if (width > best.width || (width == best.width && steps < best.steps)) best = {width, steps};
      return;
    }
    if (node != from_ && is_memory(topology_[node].kind)) return;
    visited_.insert(node);
    for (const Link& link : topology_.links) {
      if (nvlink_only_ && link.kind != LinkKind::nvlink) continue;
      const bool forward = link.a == node;
      if (!forward && link.b != node) continue;
      const NodeIndex next = forward ? link.b : link.a;
      if (visited_.contains(next)) continue;
      const Rate& rate = forward ? link.forward : link.backward;
      double through = width;
      if (rate.known()) through = std::min(through, rate.bytes_per_s);
      if (link.both.known()) through = std::min(through, link.both.bytes_per_s);
      visit(next, through, steps + 1);
    }
    visited_.erase(node);
  }

  const Topology& topology_;
  const NodeIndex from_, to_;
  const bool nvlink_only_;
  std::set<NodeIndex> visited_;
};

void expect_connected(const Topology& topology, const Path& path) {
  NodeIndex at = path.from;
  for (const Step step : path.steps) {
    const Link& link = topology.links[step.link];
    EXPECT_EQ(step.forward ? link.a : link.b, at);
    at = step.forward ? link.b : link.a;
  }
  EXPECT_EQ(at, path.to);
}

void compare_with_every_path(const Topology& topology, NodeIndex from, NodeIndex to) {
  Best best = EveryPath(topology, from, to, true).best;
  if (best.width == 0) best = EveryPath(topology, from, to, false).best;
  const auto path = best_path(topology, from, to);
  ASSERT_EQ(path.has_value(), best.width > 0);
  if (!path) return;
  expect_connected(topology, *path);
  EXPECT_EQ(path->steps.size(), best.steps);
  double width = best.width;
  if (const Copy* copy = topology.copy(from, to)) width = std::min(width, copy->rate.bytes_per_s);
  EXPECT_EQ(path_rate(topology, *path).value_or(kUnlimited), width);
}

TEST(Paths, OfRandomMachinesAreTheWidestOfAllAndOfTheseTheShortest) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Topology topology = random_machine(random, int(2 + random() % 4));
    for (std::uint32_t from = 0; from < topology.nodes.size(); ++from)
      for (std::uint32_t to = 0; to < topology.nodes.size(); ++to)
        if (from != to && is_memory(topology.nodes[from].kind) && is_memory(topology.nodes[to].kind))
          compare_with_every_path(topology, {from}, {to});
  }
}

TEST(Paths, UseTheNVLinkAndGoOverPcieWhereThereIsNone) {
  const Topology topology = uneven_nvlinks();
  const auto device = [&](int ordinal) { return *topology.find(NodeKind::device, ordinal); };
  const auto rate = [&](int from, int to) {
    return path_rate(topology, *best_path(topology, device(from), device(to))).value_or(0);
  };
  EXPECT_EQ(rate(0, 1), 100 * GBps);
  EXPECT_EQ(rate(2, 0), 50 * GBps);
  EXPECT_EQ(rate(0, 3), 12 * GBps);  // not through device 1: paths do not relay through memory
}

TEST(Paths, AnNVLinkIsTakenWhateverIsKnownOfThePcieBesideIt) {
  Topology topology = uneven_nvlinks();
  for (Link& link : topology.links)
    if (link.kind == LinkKind::pcie) link.forward = link.backward = {};
  const auto path = best_path(topology, *topology.find(NodeKind::device, 0), *topology.find(NodeKind::device, 2));
  EXPECT_EQ(path_rate(topology, *path), 50 * GBps);
}

TEST(Paths, ALimitOfBothDirectionsLimitsEach) {
  Topology topology = host_nodes(1, 0);
  const NodeIndex host = *topology.find(NodeKind::host, 0);
  const NodeIndex device = add_device(topology, *topology.find(NodeKind::root, 0), 50);
  topology.links.back().both = measured(40);
  EXPECT_EQ(path_rate(topology, *best_path(topology, host, device)), 40 * GBps);
}

TEST(Paths, WithoutAnyRateHaveNone) {
  Topology topology = uneven_nvlinks();
  for (Link& link : topology.links) link.forward = link.backward = {};
  const auto path = best_path(topology, *topology.find(NodeKind::device, 0), *topology.find(NodeKind::device, 1));
  ASSERT_TRUE(path);
  EXPECT_EQ(path->steps.size(), 1u);
  EXPECT_FALSE(path_rate(topology, *path));
}

TEST(Paths, DoNotJoinWhatNothingJoins) {
  Topology topology = host_nodes(1, 0);
  const NodeIndex alone = topology.add({NodeKind::device, 0, "GPU", "", 0});
  EXPECT_FALSE(best_path(topology, *topology.find(NodeKind::host, 0), alone));
  EXPECT_TRUE(best_path(topology, alone, alone));
}

}  // namespace
}  // namespace vmem::topology
