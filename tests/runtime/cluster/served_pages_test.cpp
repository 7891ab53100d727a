// Pages of a program's published region, read by another node through the network's code.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/cluster/lent_pages.hpp"

namespace vmem::test {
namespace {

// Through a server of pages, a fabric, and the tier of a reader.
struct ServedPages : LentPages {
  static constexpr NodeId kOwner{1}, kReader{9};
  ManualClock clock;
  rdma::Fabric fabric{clock};
  sharing::Finder finder;
  std::unique_ptr<rdma::Node> owner, reader;
  std::unique_ptr<sharing::PageServer> server;
  std::unique_ptr<sharing::SharedTier> tier;

  void TearDown() override {
    tier.reset();
    server.reset();
    reader.reset();
    owner.reset();
    LentPages::TearDown();
  }
  std::unique_ptr<rdma::Node> make_node(NodeId id) {
    rdma::NodeSetup setup{
        .self = {id, Incarnation{1}}, .make_transport = {}, .clock = &clock, .times = {}, .own_thread = false};
    setup.make_transport = [&](rdma::Receiver& receiver) -> Result<std::unique_ptr<rdma::Transport>> {
      return fabric.node(setup.self, receiver);
    };
    return *rdma::Node::create(setup);
  }
  // The clock hardly advances: workers need real time.
  bool turn_until(const std::function<bool()>& done) {
    return comes_true([&] {
      reader->turn();
      owner->turn();
      clock.advance(1);
      return done();
    });
  }
  void connect() {
    owner = make_node(kOwner);
    server = std::make_unique<sharing::PageServer>(*owner, *pages);
    reader = make_node(kReader);
    finder.links = &reader->links();
    finder.by_node[kOwner] = reader->links().add({"node:1"}, finder);
    tier = std::make_unique<sharing::SharedTier>(
        *reader, finder, *pages, sharing::SharedTier::Config{.times = {}, .workers = 0, .on_ready = {}});
    ASSERT_TRUE(turn_until([&] { return finder.connection(kOwner) != rdma::PeerId{}; }));
  }
};

TEST_F(ServedPages, AReaderGetsAllThatWasPublished) {
  start({}, 16, 192);
  constexpr std::uint32_t kCount = 40;
  publish(kCount, {5});
  pages->remove(kSerial);
  pages->add(kSerial, {&region(), key, ""});  // nodes of this fabric have no tenant
  connect();
  into_hbm(0, 8);
  ASSERT_TRUE(runtime->requests().quiesce());
  ASSERT_GT(places().bytes_below_host, 0u);
  const auto source = tier->open({.name = "weights",
                                  .serial = kSerial,
                                  .bytes = kCount * kPage,
                                  .page_bytes = kPage,
                                  .first_granule = region().first.index,
                                  .key = key});
  const tiers::SlotId slots = *source->lay_out(kPage, kCount);
  const auto buffer = std::make_unique<std::byte[]>(kPage);
  std::vector<std::byte> expected(kPage);
  for (std::uint32_t page = 0; page < kCount; ++page) {
    if (page != 5) finder.where[page] = {kOwner};
    tiers::Transfer transfer;
    transfer.slot = slots + page;
    transfer.host = buffer.get();
    transfer.bytes = kPage;
    ASSERT_TRUE(tier->submit({&transfer, 1}));
    std::vector<tiers::Completion> completions;
    ASSERT_TRUE(turn_until([&] {
      EXPECT_TRUE(tier->poll(completions));
      return !completions.empty();
    }));
    ASSERT_EQ(completions[0].outcome, tiers::Outcome::done) << completions[0].error.message;
    std::ranges::fill(expected, std::byte{});
    if (page != 5) fill(expected, page);
    EXPECT_EQ(std::memcmp(buffer.get(), expected.data(), kPage), 0) << page;
  }
  EXPECT_EQ(tier->statistics().mismatches, 0u);
  EXPECT_TRUE(turn_until([&] { return server->statistics().pages == kCount - 1; }));
  EXPECT_EQ(server->statistics().refused, 0u);
}

}  // namespace
}  // namespace vmem::test
