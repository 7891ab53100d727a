// A home without a network: tests tell it messages and look at what it says.
#pragma once

#include <gmock/gmock.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/directory/home_directory.hpp"

namespace vmem::cluster::directory {

// Takes requests and answers none.
class SilentRegistry final : public Registry {
 public:
  RequestId post(RegistryRequest request) override {
    posted.push_back(std::move(request));
    return RequestId{posted.size()};
  }
  void poll(std::vector<Reply>&) override {}
  std::vector<RegistryRequest> posted;
};

inline RegionRecord region_of(std::uint32_t participants) {
  RegionRecord record;
  record.serial = Serial{7};
  record.name = "table";
  record.pages = 8;
  record.tenant = std::string("t");  // GCC 12 warns of an overlap in assigning the literal
  record.publisher = record.home = NodeId{1};
  record.term = Term{2};
  for (std::uint32_t i = 0; i < participants; ++i)
    record.participants[i] = {.node = NodeId{i + 1}, .session = Session{5}, .daemon = false};
  return record;
}

class HomeDirectoryTest : public ::testing::Test {
 protected:
  HomeDirectory& make(std::uint32_t participants) { return make(region_of(participants)); }
  HomeDirectory& make(const RegionRecord& record) {
    home = std::make_unique<HomeDirectory>(calls, context, StoredRegion{.record = record, .modified = Revision{10}});
    return *home;
  }
  void begin(std::uint32_t participants) { make(participants).begin({{.first = 0, .count = 4}}); }
  void tell(NodeId from, Body body, Term term = Term{2}, const std::string& tenant = "t") {
    out = {};
    home->handle({.node = from, .tenant = tenant},
                 {.serial = Serial{7}, .term = term, .session = Session{5}, .body = std::move(body)}, clock.now_us(),
                 out);
  }
  // Steps until nothing is left to do; returns the number of steps that did something.
  int settle() {
    out = {};
    int steps = 0;
    while (home->step(clock.now_us(), out) && steps < 10'000) ++steps;
    return steps;
  }
  template <class Body>
  std::optional<Body> said() {
    for (const Outgoing& each : out.messages)
      if (const auto* found = std::get_if<Body>(&each.message.body)) return *found;
    return std::nullopt;
  }

  // What was said to a node last.
  template <class Body>
  std::optional<Body> said_to(NodeId node) {
    std::optional<Body> last;
    for (const Outgoing& each : out.messages)
      if (const auto* found = std::get_if<Body>(&each.message.body); found != nullptr && each.to == node) last = *found;
    return last;
  }

  SilentRegistry registry;
  ManualClock clock;
  RegistryCalls calls{registry, clock};
  NodesView view{.as_of = Revision{20}, .nodes = {{.id = NodeId{1}}, {.id = NodeId{2}}, {.id = NodeId{3}}}};
  RegionIndex index;
  DirectoryConfig config;
  Random random = [] { return std::uint64_t{1}; };
  bool fenced = false;
  HomeContext context{.self = NodeId{1},
                      .self_record = Revision{1},
                      .view = view,
                      .index = index,
                      .config = config,
                      .random = random,
                      .fenced = [this] { return fenced; },
                      .unix_s = [] { return std::uint64_t{1}; }};
  std::unique_ptr<HomeDirectory> home;
  Outbox out;
};

}  // namespace vmem::cluster::directory
