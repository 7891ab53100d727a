// Enrollment in virtual time: a registry without faults at first, and hosts.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/simulator/enrolled_host.hpp"

namespace vmem::cluster::simulator {

inline constexpr std::uint64_t kSecondUs = 1'000'000;

inline ClusterParameters parameters(std::uint32_t slices = 4) {
  return {.base = 1ull << 44,
          .space_bytes = slices * (1ull << 36),
          .slice_bytes = 1ull << 36,
          .granule_bytes = 2u << 20,
          .page_rule = "test"};
}

// Hosts a, b, ... on one registry without faults, with a lease of 90 s.
class EnrollmentTest : public ::testing::Test {
 protected:
  struct Node {
    std::unique_ptr<EnrolledHost> host;
    std::vector<EnrollmentEvent> events;
  };
  Node& add(ClusterParameters with = parameters()) {
    Node& node = start(std::move(with));
    run(1);
    return node;
  }
  Node& start(ClusterParameters with = parameters(), std::function<void(NodeRecord&)> describe = {}) {
    Node& node = *nodes.emplace_back(std::make_unique<Node>());
    EnrolledHost::Setup setup{.parameters = std::move(with), .config = {}};
    setup.describe = std::move(describe);
    setup.saw = [&node](const EnrollmentEvent& event) { node.events.push_back(event); };
    node.host = std::make_unique<EnrolledHost>(registry, std::string(1, char('a' + nodes.size() - 1)), nodes.size(),
                                               std::move(setup));
    node.host->start();
    return node;
  }
  void run(std::uint64_t seconds) { queue.run_until(queue.now_us() + seconds * kSecondUs); }
  template <class Event>
  static std::vector<Event> all(const Node& node) {
    std::vector<Event> found;
    for (const EnrollmentEvent& event : node.events)
      if (const auto* one = std::get_if<Event>(&event)) found.push_back(*one);
    return found;
  }
  // The answer to what was asked for last.
  template <class Event, class Ask>
  Event ask(Node& node, Ask what, std::uint64_t seconds = 1) {
    const Ticket ticket = what(node.host->enrollment());
    node.host->waits_for(ticket);
    node.host->wake();
    run(seconds);
    for (const Event& event : all<Event>(node))
      if (event.ticket == ticket) return event;
    ADD_FAILURE() << "no answer";
    return {ticket, fail(VMEM_ERROR_INTERNAL, "no answer")};
  }
  std::vector<Slice> take(Node& node, std::uint32_t count) {
    auto taken = ask<SlicesTaken>(node, [&](Enrollment& each) { return each.take_slices(count); });
    EXPECT_TRUE(taken.slices) << taken.slices.error().message;
    return taken.slices.value_or(std::vector<Slice>{});
  }
  void put(const std::string& key, std::optional<std::string> value) {
    registry.apply(Commit{.conditions = {}, .edits = {{.key = key, .value = std::move(value), .lease = {}}}});
  }
  bool has(const std::string& key) { return registry.records().contains(key); }

  EventQueue queue;
  SimulatedRegistry registry{queue, 0};
  std::vector<std::unique_ptr<Node>> nodes;
};

NodeId id(const auto& node) { return node.host->enrollment().id(); }

}  // namespace vmem::cluster::simulator
