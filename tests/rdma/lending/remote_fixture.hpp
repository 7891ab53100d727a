// A remote tier and its lenders on a fabric. The test steps them on a manual clock, which advances
// only when they are idle, or on clocks of their own that drift from it; or each has a thread and
// the real clock.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "campaign/drifting_clock.hpp"
#include "rdma/lending/memory_service/memory_service.hpp"
#include "rdma/lending/remote_tier/remote_tier.hpp"
#include "rdma/transport/faulty.hpp"
#include "rdma/transport/in_process/in_process.hpp"
#include "rdma/transport/timed_cut.hpp"

namespace vmem::rdma {

inline constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

struct FreeBytes {
  void operator()(std::byte* memory) const { std::free(memory); }
};
using PageMemory = std::unique_ptr<std::byte, FreeBytes>;
inline PageMemory page_memory(std::uint64_t bytes) {
  PageMemory memory(static_cast<std::byte*>(std::aligned_alloc(4096, bytes)));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

class Lender {
 public:
  Lender(Fabric& fabric, const Clock& clock, NodeIdentity self, MemoryService::Config config, std::uint64_t bytes,
         bool threads = false, std::uint64_t seed = 77)
      : memory_(page_memory(bytes)) {
    config.clock = &clock;
    config.memory = {memory_.get(), bytes};
    NodeSetup setup{.self = self, .make_transport = {}, .clock = &clock, .times = {}, .own_thread = threads};
    setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      auto faulty = std::make_unique<FaultyTransport>(fabric.node(self, receiver, clock), clock, seed);
      faults = faulty.get();
      return faulty;
    };
    node = *Node::create(std::move(setup));
    service = std::make_unique<MemoryService>(config);
    EXPECT_TRUE(service->start(*node));
    node->start();
  }
  // Ends like a killed process: no farewell is sent, and the kernel closes the connections.
  ~Lender() { service->stop(); }
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;
  bool turn() { return node->turn(); }
  ConstBytes memory(std::uint64_t bytes) const { return {memory_.get(), bytes}; }
  Bytes writable(std::uint64_t bytes) { return {memory_.get(), bytes}; }

  FaultyTransport* faults = nullptr;
  std::unique_ptr<Node> node;
  std::unique_ptr<MemoryService> service;

 private:
  PageMemory memory_;
};

inline std::string node_address(std::uint64_t id) { return "node:" + std::to_string(id); }

class SteppedRemote {
 public:
  static constexpr std::uint64_t kLenderBytes = 8 * kPage;
  static constexpr std::uint64_t kRequestUs = 2'000'000, kPatienceUs = 20'000'000;
  static constexpr std::uint64_t kTier = 100;  // its node
  static constexpr std::size_t kExpected = 4;  // index of the memory that holds() uses

  explicit SteppedRemote(std::size_t count, std::uint32_t replicas = 1, std::uint64_t tenant = 0)
      : replicas_(replicas), tenant_(tenant) {
    fabric.set_latency(10);
    for (std::uint64_t id = 1; id <= count; ++id) {
      lenders.emplace_back();
      start_lender(id);
    }
    for (std::size_t i = 0; i <= kExpected; ++i) memories_.push_back(page_memory(kPage));
  }
  // Each start has a new incarnation.
  NodeIdentity start_lender(std::uint64_t id) {
    const NodeIdentity self{NodeId{id}, Incarnation{++incarnation_}};
    lenders[id - 1].reset();
    lenders[id - 1] = std::make_unique<Lender>(fabric, clock_of(id), self, service_config, kLenderBytes, false,
                                               seed * 1000 + incarnation_);
    return self;
  }
  // From now on each node that starts has a clock of its own, which it keeps when it starts again.
  void drift() { clocks.emplace(); }
  const Clock& clock_of(std::uint64_t id) {
    if (!clocks) return clock;
    std::mt19937_64 random(seed * 1000 + id);
    return clocks->try_emplace(id, test::DriftingClock::any(clock, random)).first->second;
  }
  void start_tier(std::uint64_t id = kTier) {
    RemoteTier::Config config;
    const Clock& own_clock = clock_of(id);
    for (std::size_t i = 1; i <= lenders.size(); ++i) config.peers.push_back(node_address(i));
    NodeSetup setup{.self = {NodeId{id}, Incarnation{++incarnation_}},
                    .make_transport = {},
                    .clock = &own_clock,
                    .times = {},
                    .own_thread = false};
    setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      auto faulty = std::make_unique<FaultyTransport>(fabric.node(setup.self, receiver, own_clock), own_clock, seed);
      faults = faulty.get();
      return faulty;
    };
    tier.reset();
    node = *Node::create(setup);
    config.replicas = replicas_;
    config.tenant = tenant_;
    config.protection = protection;
    config.drain_bytes = drain_bytes;
    config.request_us = kRequestUs;
    config.patience_us = kPatienceUs;
    config.own_workers = false;
    config.by_need = by_need;
    config.borrow_bytes = borrow_bytes;
    tier = *RemoteTier::create(std::move(config), *node);
    until([&] { return connected() == lenders.size() && (by_need || lenders.empty() || ready() > 0); });
  }
  std::uint64_t ready() const { return tier->usage().ready_bytes; }
  // The lenders that have a lease of the tier, as far as each of them has one lease only.
  std::size_t connected() const {
    std::size_t count = 0;
    for (const auto& lender : lenders) count += lender && lender->service->statistics().clients != 0 ? 1 : 0;
    return count;
  }

  bool turn() {
    bool did = node && node->turn();
    for (const auto& lender : lenders) did |= lender && lender->turn();
    return did;
  }
  // Turns until `done`. Time advances between turns, by more and more while all are idle.
  template <class Done>
  void until(Done done, std::uint64_t most_us = 120'000'000) {
    const std::uint64_t end = clock.now_us() + most_us;
    std::uint64_t pass = 10;
    while (!done()) {
      ASSERT_LT(clock.now_us(), end) << "it did not come to pass";
      pass = turn() ? 10 : std::min<std::uint64_t>(pass * 2, 50'000);
      clock.advance(pass);
      cut.keep_time();
    }
  }
  void pass(std::uint64_t us) {
    const std::uint64_t end = clock.now_us() + us;
    until([&] { return clock.now_us() >= end; });
  }

  tiers::SlotId slot() {
    const auto grant = *tier->allocate(kPage);
    EXPECT_EQ(grant.grant, tiers::Grant::granted);
    return grant.slot;
  }
  std::byte* memory(std::size_t i) { return memories_[i].get(); }
  // Fills memory `i` with the contents of page `granule` at `version`.
  void fill(std::size_t i, std::uint64_t granule, std::uint64_t version) {
    std::mt19937_64 random(granule << 20 | version);
    for (std::size_t at = 0; at < kPage; at += 4096) {
      const std::uint64_t word = random();
      std::memcpy(memory(i) + at, &word, sizeof(word));
      std::memcpy(memory(i) + at + 4088, &word, sizeof(word));
    }
  }
  bool holds(std::size_t i, std::uint64_t granule, std::uint64_t version) {
    fill(kExpected, granule, version);
    return std::memcmp(memory(kExpected), memory(i), kPage) == 0;
  }
  std::uint64_t submit(tiers::Direction direction, tiers::SlotId slot, std::size_t i, std::uint64_t granule,
                       std::uint64_t version, bool if_changed = false) {
    tiers::Transfer transfer;
    transfer.page.granule = static_cast<std::uint32_t>(granule);
    transfer.version = version;
    transfer.slot = slot;
    transfer.host = memory(i);
    transfer.bytes = kPage;
    transfer.direction = direction;
    transfer.if_changed = if_changed;
    EXPECT_TRUE(tier->submit({&transfer, 1}));
    return transfer.id;
  }
  const tiers::Completion* completion(std::uint64_t id) {
    EXPECT_TRUE(tier->poll(completions_));
    for (const auto& each : completions_) {
      if (each.id == id) return &each;
    }
    return nullptr;
  }
  tiers::Completion wait_for(std::uint64_t id) {
    until([&] { return completion(id) != nullptr; });
    const auto* const found = completion(id);
    return found != nullptr ? *found : tiers::Completion{};
  }
  // Stores one page from memory 0; load reads into memory 1.
  tiers::Completion store(tiers::SlotId slot, std::uint64_t granule, std::uint64_t version, bool if_changed = false) {
    fill(0, granule, version);
    return wait_for(submit(tiers::Direction::store, slot, 0, granule, version, if_changed));
  }
  tiers::Completion load(tiers::SlotId slot, std::uint64_t granule, std::uint64_t version) {
    return wait_for(submit(tiers::Direction::load, slot, 1, granule, version));
  }
  bool loads(tiers::SlotId slot, std::uint64_t granule, std::uint64_t version) {
    const auto loaded = load(slot, granule, version);
    EXPECT_EQ(loaded.outcome, tiers::Outcome::done) << loaded.error.message;
    return loaded.outcome == tiers::Outcome::done && holds(1, granule, version);
  }

  ManualClock clock;  // the time; without drift() that of every node, too
  Fabric fabric{clock};
  TimedCut cut{fabric, clock};
  MemoryService::Config service_config;
  std::optional<std::map<std::uint64_t, test::DriftingClock>> clocks;  // by node, if they drift
  std::vector<std::unique_ptr<Lender>> lenders;
  FaultyTransport* faults = nullptr;
  std::unique_ptr<Node> node;
  std::unique_ptr<RemoteTier> tier;
  std::uint64_t seed = 1;
  // Of tiers started from now on.
  PageAead::Mode protection = PageAead::Mode::authenticate;
  std::uint64_t drain_bytes = RemoteConfig{}.drain_bytes;
  bool by_need = false;
  std::uint64_t borrow_bytes = UINT64_MAX;

 private:
  const std::uint32_t replicas_;
  const std::uint64_t tenant_;
  std::uint64_t incarnation_ = 10;
  std::vector<PageMemory> memories_;
  std::vector<tiers::Completion> completions_;
};

}  // namespace vmem::rdma
