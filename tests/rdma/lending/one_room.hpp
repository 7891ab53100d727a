// A lender and the borrowers that a test plays, over a transport with scripted peers.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/memory_service/memory_service.hpp"
#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {

// The lender's last answer to an Ask.
inline wire::Lent last_lent(const ScriptedTransport& transport) {
  for (auto each = transport.sent.rbegin(); each != transport.sent.rend(); ++each) {
    const auto parsed = wire::parse(each->header);
    if (parsed && parsed->header.kind == wire::Kind::allocated) return *wire::read_lent(parsed->body);
  }
  ADD_FAILURE() << "nothing was answered";
  return {};
}
// Like a real clock, it may advance between two readings.
class SteppingClock final : public Clock {
 public:
  std::uint64_t now_us() const noexcept override { return now_us_ += each_look_us; }
  void advance(std::uint64_t us) { now_us_ += us; }
  std::uint64_t each_look_us = 0;

 private:
  mutable std::uint64_t now_us_ = 1;
};

// A node that lends 16 MiB, all to the first borrower.
class OneRoom : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kBytes = 16 * kMiB;
  explicit OneRoom(tiers::Tier* disk = nullptr, tiers::Tier* hbm = nullptr, std::uint64_t bytes = kBytes)
      : memory(bytes), service({.clock = &clock, .memory = memory, .disk = disk, .hbm = hbm}) {}
  void SetUp() override { ASSERT_TRUE(service.start(*host)); }
  void TearDown() override {
    transport.on_progress = [&] {
      for (const PeerId each : connected_) transport.gone(each);
      connected_.clear();
    };
    service.stop();
  }
  void connect(std::uint64_t node, ProcessRef process = nullptr) {
    transport.connected(PeerId{node}, NodeId{node}, std::move(process));
    connected_.push_back(PeerId{node});
  }
  void leave(std::uint64_t node) {
    transport.gone(PeerId{node});
    std::erase(connected_, PeerId{node});
    host->step();
  }
  // All that there is.
  wire::Lent ask(std::uint64_t node) {
    return ask(node, wire::Ask{{.memory = UINT64_MAX, .disk = UINT64_MAX, .hbm = UINT64_MAX}});
  }
  // Names the lease that the node heard of last.
  wire::Lent ask(std::uint64_t node, wire::Ask asked) {
    asked.lease = leases_[node];
    const std::size_t before = transport.sent.size();
    transport.says(PeerId{node}, NodeId{node}, wire::Kind::allocate, wire::encode(asked));
    host->step();
    EXPECT_GT(transport.sent.size(), before) << "it has no answer";
    const wire::Lent lent = last_lent(transport);
    leases_[node] = lent.lease;
    return lent;
  }
  // Asks repeatedly, as a borrower does, until the memory of others is wiped.
  wire::Lent ask_again(std::uint64_t node) {
    wire::Lent lent = ask(node);
    for (int i = 0; lent.answer == wire::Answer::again && i < 100; ++i) lent = ask(node);
    return lent;
  }
  SteppingClock clock;
  RegisteringTransport* made = nullptr;
  const std::unique_ptr<Node> host = scripted_node(clock, made);
  RegisteringTransport& transport = *made;
  std::vector<std::byte> memory;
  MemoryService service;
  std::vector<PeerId> connected_;
  std::map<std::uint64_t, std::uint64_t> leases_;  // by node
};

}  // namespace vmem::rdma
