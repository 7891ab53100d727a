// Nodes that hold, and read, pages of one published region, over a fabric. The test steps them on a
// manual clock, which advances only when they are idle, or on clocks of their own that drift from
// it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "campaign/drifting_clock.hpp"
#include "rdma/transport/faulty.hpp"
#include "rdma/transport/in_process/in_process.hpp"
#include "rdma/transport/timed_cut.hpp"
#include "sharing/page_server.hpp"
#include "sharing/shared_tier.hpp"

namespace vmem::sharing {

inline constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
inline constexpr pagetable::Serial kSerial{5};

inline SharedPage page_of(std::uint32_t index) { return {.serial = kSerial, .bytes = kPage, .page = index}; }

// The bytes of the region's pages; known to all.
inline void fill(rdma::Bytes page, std::uint32_t index) {
  for (std::size_t at = 0; at < page.size(); at += 4096) {
    const std::uint64_t word = (std::uint64_t{index} << 32 | at) * 0x9e3779b97f4a7c15;
    std::memcpy(&page[at], &word, sizeof(word));
  }
}

// Holds pages in vectors; answers at once, or when the test says so.
class Holder final : public PageHolder {
 public:
  explicit Holder(const RegionKey& key) : key_(key) {}

  void hold(std::uint32_t index) {
    std::vector<std::byte>& page = pages[index];
    page.resize(kPage);
    fill(page, index);
  }
  bool may_read(pagetable::Serial serial, const std::string&) const override { return serial == kSerial && readable; }
  void lend(const SharedPage& page, Lent lent) override {
    ++asked;
    if (later) return waiting.emplace_back(page, std::move(lent)), void();
    answer(page, lent);
  }
  void answer_all() {
    for (auto& [page, lent] : std::exchange(waiting, {})) answer(page, lent);
  }

  std::map<std::uint32_t, std::vector<std::byte>> pages;
  std::map<std::uint32_t, rdma::wire::Answer> refusals;
  std::deque<std::pair<SharedPage, Lent>> waiting;
  bool readable = true, later = false;
  int asked = 0, lent_out = 0;

 private:
  void answer(const SharedPage& page, Lent& lent) {
    if (const auto refusal = refusals.find(page.page); refusal != refusals.end())
      return lent(std::unexpected(refusal->second));
    const auto found = pages.find(page.page);
    if (found == pages.end()) return lent(std::unexpected(rdma::wire::Answer::unknown));
    std::vector<std::byte> whole(kPage);
    fill(whole, page.page);
    ++lent_out;
    LentPage given{.bytes = found->second, .tag = key_.tag(whole, page), .give_back = [this] { --lent_out; }};
    lent(std::move(given));
  }
  const RegionKey& key_;
};

// Connections of a reader, and who has which page, as the test says.
class Finder final : public PageFinder, public rdma::LinkUser {
 public:
  void find(const SharedPage& page, std::uint64_t, Found found) override {
    ++finds;
    if (silent) return unanswered.push_back(std::move(found));
    if (nowhere.contains(page.page)) return found(fail(VMEM_ERROR_LOST, "no node has it"));
    PageSources sources{.nodes = where[page.page], .fetch = std::uint32_t(finds), .last = last.contains(page.page)};
    std::erase_if(sources.nodes, [&](NodeId node) { return reported.contains({page.page, node}); });
    if (sources.nodes.empty() && !where[page.page].empty()) return found(fail(VMEM_ERROR_LOST, "all said no"));
    found(std::move(sources));
  }
  bool landed(const SharedPage& page, std::uint32_t fetch) override {
    if (fetch <= refused) return false;
    arrived.push_back(page.page);
    return true;
  }
  void gone(const SharedPage& page) override { own_lost.push_back(page.page); }
  void missing(const SharedPage& page, NodeId node) override { reported.emplace(page.page, node); }
  rdma::PeerId connection(NodeId node) override {
    return links->is_up(by_node.at(node)) ? links->peer(by_node.at(node)) : rdma::PeerId{};
  }
  Status up(rdma::LinkId, const rdma::Connected&) override { return {}; }
  void down(rdma::LinkId, const rdma::LinkDown&) override {}

  rdma::Links* links = nullptr;
  std::map<NodeId, rdma::LinkId> by_node;
  std::map<std::uint32_t, std::vector<NodeId>> where;
  std::set<std::uint32_t> nowhere;  // pages that no node has
  std::set<std::uint32_t> last;     // pages that one node has, not their publisher
  std::set<std::pair<std::uint32_t, NodeId>> reported;
  std::vector<std::uint32_t> arrived, own_lost;
  std::vector<Found> unanswered;
  bool silent = false;
  int finds = 0;
  std::uint32_t refused = 0;  // what was fetched by numbers up to this one is not to be used
};

// Nodes 1 and 2 hold pages, node 9 reads them.
class Sharing : public ::testing::Test {
 protected:
  static constexpr NodeId kFirst{1}, kSecond{2}, kReader{9};
  struct Server {
    Server(Sharing& world, NodeId id, std::uint64_t incarnation = 1)
        : holder(world.key),
          node(world.make_node(id, faults, incarnation)),
          server(std::make_unique<PageServer>(*node, holder)) {}
    rdma::FaultyTransport* faults = nullptr;
    Holder holder;
    std::unique_ptr<rdma::Node> node;
    std::unique_ptr<PageServer> server;
  };

  Sharing() : Sharing(std::nullopt) {}
  // With a seed, of the faults, each node has a clock of its own.
  explicit Sharing(std::optional<std::uint64_t> of) : seed(of) {
    fabric.set_latency(10);
    for (const NodeId id : {kFirst, kSecond}) servers.emplace(id, std::make_unique<Server>(*this, id));
    reader = make_node(kReader, reader_faults);
    finder.links = &reader->links();
    for (const NodeId id : {kFirst, kSecond}) finder.by_node[id] = reader->links().add({address(id)}, finder);
    tier = std::make_unique<SharedTier>(*reader, finder, own, SharedTier::Config{.times = times, .workers = 0});
    open({});
    until([&] { return finder.connection(kFirst) != rdma::PeerId{} && finder.connection(kSecond) != rdma::PeerId{}; });
  }
  void open(pagetable::Serial earlier) {
    source.reset();
    source = tier->open({.name = "weights",
                         .serial = kSerial,
                         .bytes = kPages * kPage,
                         .page_bytes = kPage,
                         .first_granule = 40,
                         .earlier = earlier,
                         .key = std::make_shared<RegionKey>(*RegionKey::of(key.bytes()))});
    slots = *source->lay_out(kPage, kPages);
  }
  static std::string address(NodeId id) { return "node:" + std::to_string(static_cast<std::uint64_t>(id)); }
  std::unique_ptr<rdma::Node> make_node(NodeId id, rdma::FaultyTransport*& faults, std::uint64_t incarnation = 1) {
    const Clock& own_clock = clock_of(id);
    rdma::NodeSetup setup{.self = {id, Incarnation{incarnation}},
                          .make_transport = {},
                          .clock = &own_clock,
                          .times = {},
                          .own_thread = false};
    const std::uint64_t faults_seed = seed.value_or(0) * 1000 + static_cast<std::uint64_t>(id) * 100 + incarnation;
    setup.make_transport = [&](rdma::Receiver& receiver) -> Result<std::unique_ptr<rdma::Transport>> {
      auto faulty =
          std::make_unique<rdma::FaultyTransport>(fabric.node(setup.self, receiver, own_clock), own_clock, faults_seed);
      faults = faulty.get();
      return faulty;
    };
    return *rdma::Node::create(setup);
  }
  const Clock& clock_of(NodeId id) {
    if (!seed) return clock;
    std::mt19937_64 random(*seed * 1000 + static_cast<std::uint64_t>(id));
    return clocks.try_emplace(id, test::DriftingClock::any(clock, random)).first->second;
  }
  Server& at(NodeId id) { return *servers.at(id); }

  bool turn() {
    bool did = reader->turn();
    for (const auto& [id, server] : servers) did |= server->node->turn();
    return did;
  }
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

  std::uint64_t submit(std::uint32_t index) {
    tiers::Transfer transfer;
    transfer.slot = slots + index;
    transfer.host = memory[index].get();
    transfer.bytes = kPage;
    std::memset(transfer.host, 0xee, kPage);
    EXPECT_TRUE(tier->submit({&transfer, 1}));
    return transfer.id;
  }
  const tiers::Completion* completion(std::uint64_t id) {
    EXPECT_TRUE(tier->poll(completions));
    const auto found = std::ranges::find(completions, id, &tiers::Completion::id);
    return found == completions.end() ? nullptr : &*found;
  }
  tiers::Completion load(std::uint32_t index) {
    const std::uint64_t id = submit(index);
    until([&] { return completion(id) != nullptr; });
    const auto* const found = completion(id);
    return found == nullptr ? tiers::Completion{} : *found;
  }
  bool holds(std::uint32_t index) {
    std::vector<std::byte> expected(kPage);
    fill(expected, index);
    return std::memcmp(expected.data(), memory[index].get(), kPage) == 0;
  }

  static constexpr std::uint32_t kPages = 8;
  const std::optional<std::uint64_t> seed;
  ManualClock clock;  // the time; without a seed that of every node, too
  std::map<NodeId, test::DriftingClock> clocks;
  rdma::Fabric fabric{clock};
  rdma::TimedCut cut{fabric, clock};
  RegionKey key = *RegionKey::create();
  SharedTimes times;
  std::map<NodeId, std::unique_ptr<Server>> servers;
  rdma::FaultyTransport* reader_faults = nullptr;
  Finder finder;
  RegionKey earlier_key = *RegionKey::create();
  Holder own{earlier_key};  // what the reader has of the version before
  std::unique_ptr<rdma::Node> reader;
  std::unique_ptr<SharedTier> tier;
  std::shared_ptr<tiers::PageSource> source;
  tiers::SlotId slots = 0;
  std::vector<std::unique_ptr<std::byte[]>> memory = [] {
    std::vector<std::unique_ptr<std::byte[]>> pages;
    for (std::uint32_t i = 0; i < kPages; ++i) pages.push_back(std::make_unique<std::byte[]>(kPage));
    return pages;
  }();
  std::vector<tiers::Completion> completions;
};

}  // namespace vmem::sharing
