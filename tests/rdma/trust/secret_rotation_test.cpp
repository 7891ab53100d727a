// Replaces a secret while a node has pages with a lender, following the steps in SECURITY.md.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "rdma/lending/remote_fixture.hpp"
#include "rdma/transport/stream/stream_transport.hpp"
#include "rdma/trust/secret_file.hpp"

namespace vmem::rdma {
namespace {

// Longer than the interval at which a node rereads its secret file.
constexpr std::uint64_t kLookUs = 1'100'000;
constexpr std::uint64_t kNode = 100;
constexpr std::size_t kPages = 4;

// The real clock, which a test may move ahead.
class JumpingClock final : public Clock {
 public:
  std::uint64_t now_us() const noexcept override { return steady_.now_us() + ahead_us_.load(); }
  void jump(std::uint64_t us) { ahead_us_ += us; }

 private:
  SteadyClock steady_;
  std::atomic<std::uint64_t> ahead_us_ = 0;
};

struct NothingArrives final : Receiver {
  std::optional<Claim> claim(PeerId, ConstBytes, std::uint64_t) override { return std::nullopt; }
};

class SecretRotation : public ::testing::Test {
 protected:
  SecretRotation() {
    lender_ = node(NodeId{1}, "127.0.0.1:0", at_lender_);
    service_ = std::make_unique<MemoryService>(
        MemoryService::Config{.clock = &clock_, .memory = {lent_.get(), 2 * kPages * kPage}});
    EXPECT_TRUE(service_->start(*lender_));
    borrower_ = node(NodeId{kNode}, "", at_node_);
    RemoteTier::Config borrower;
    borrower.peers = {lender_->transport().address()};
    borrower.own_workers = false;
    tier_ = *RemoteTier::create(std::move(borrower), *borrower_);
    EXPECT_TRUE(until([&] { return tier_->usage().ready_bytes > 0; }));
  }
  ~SecretRotation() override {
    tier_.reset();
    service_->stop();
  }

  std::unique_ptr<Node> node(NodeId id, const std::string& listen, const SecretFile& secrets) {
    NodeSetup setup{
        .self = {id, Incarnation{1}}, .make_transport = {}, .clock = &clock_, .times = {}, .own_thread = false};
    setup.make_transport = [&](Receiver& receiver) -> Result<std::unique_ptr<Transport>> {
      return transport(id, listen, secrets, receiver);
    };
    return *Node::create(setup);
  }
  std::unique_ptr<Transport> transport(NodeId id, std::string listen, const SecretFile& secrets,
                                       Receiver& receiver) const {
    return *create_stream_transport({.self = {id, Incarnation{1}},
                                     .parameters = {0x7d0000000000, 1ull << 40, kPage},
                                     .listen = std::move(listen),
                                     .keyring = secrets.read(),
                                     .clock = &clock_,
                                     .receiver = &receiver});
  }
  template <class Done>
  [[nodiscard]] bool until(Done done, int most_s = 10) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(most_s);
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      bool did = lender_->turn();
      did |= borrower_->turn();
      if (!did) lender_->transport().idle(100);
    }
    return true;
  }
  // Makes both nodes reread their files at the next turn.
  void look_at_files() {
    clock_.jump(kLookUs);
    bool turned = false;
    EXPECT_TRUE(until([&] { return std::exchange(turned, true); }));
  }
  void give_both(const std::string& secrets) {
    at_lender_.write(secrets);
    look_at_files();
    at_node_.write(secrets);
    look_at_files();
  }

  tiers::Outcome move(std::size_t page, tiers::Direction direction) {
    tiers::Transfer transfer;
    transfer.page.granule = static_cast<std::uint32_t>(page);
    transfer.version = 1;
    transfer.slot = slots_.at(page);
    transfer.host = memory_.get();
    transfer.bytes = kPage;
    transfer.direction = direction;
    EXPECT_TRUE(tier_->submit({&transfer, 1}));
    std::vector<tiers::Completion> ended;
    if (!until([&] {
          EXPECT_TRUE(tier_->poll(ended));
          return !ended.empty();
        }))
      return tiers::Outcome::failed;
    return ended.front().outcome;
  }
  void store_all() {
    for (std::size_t page = 0; page < kPages; ++page) {
      slots_.push_back(tier_->allocate(kPage)->slot);
      std::memset(memory_.get(), static_cast<int>(page + 1), kPage);
      ASSERT_EQ(move(page, tiers::Direction::store), tiers::Outcome::done);
    }
  }
  void expect_all() {
    for (std::size_t page = 0; page < kPages; ++page) {
      std::memset(memory_.get(), 0, kPage);
      ASSERT_EQ(move(page, tiers::Direction::load), tiers::Outcome::done) << "page " << page;
      EXPECT_EQ(memory_.get()[0], std::byte(page + 1));
      EXPECT_EQ(memory_.get()[kPage - 1], std::byte(page + 1));
    }
  }
  // Whether the lender accepts a node with this id and these secrets. Sends `message`, and counts
  // an answer as acceptance.
  bool lets_in(NodeId id, const std::string& secrets, ConstBytes message) {
    const SecretFile file(secrets);
    NothingArrives receiver;
    const auto other = transport(id, "", file, receiver);
    const PeerId peer = *other->connect(lender_->transport().address(), clock_.now_us() + 5'000'000);
    std::optional<bool> in;
    EXPECT_TRUE(until([&] {
      other->progress();
      std::vector<Event> events;
      other->poll(events);
      for (const Event& event : events) {
        if (std::holds_alternative<Connected>(event.what)) {
          Send send{.peer = peer, .header = message, .deadline_us = clock_.now_us() + 5'000'000};
          EXPECT_TRUE(other->send({&send, 1}));
        }
        if (std::holds_alternative<Message>(event.what)) in = true;
        if (std::holds_alternative<Gone>(event.what)) in = false;
      }
      return in.has_value();
    }));
    return in.value_or(false);
  }
  static std::vector<std::byte> request(NodeId from, wire::Kind kind, ConstBytes body) {
    return *wire::write({.kind = kind, .request = wire::RequestId{static_cast<std::uint64_t>(from), Epoch{1}, 1}},
                        body);
  }
  static std::vector<std::byte> ping(NodeId from) { return request(from, wire::Kind::ping, {}); }

  const std::string first_ = SecretFile::line("trainers"), next_ = SecretFile::line("trainers#2");
  const std::string others_ = SecretFile::line("others");
  SecretFile at_lender_{first_ + others_}, at_node_{first_};
  JumpingClock clock_;
  PageMemory lent_ = page_memory(2 * kPages * kPage), memory_ = page_memory(kPage);
  std::unique_ptr<Node> lender_, borrower_;
  std::unique_ptr<MemoryService> service_;
  std::unique_ptr<RemoteTier> tier_;
  std::vector<tiers::SlotId> slots_;
};

TEST_F(SecretRotation, ByTheDocumentedStepsLosesNoPageOfARunningNode) {
  store_all();
  give_both(first_ + next_);
  expect_all();
  give_both(next_ + first_);
  expect_all();
  EXPECT_EQ(tier_->statistics().reconnects, 0u) << "so far no connection had to end";
  give_both(next_);
  EXPECT_TRUE(until([&] { return tier_->statistics().reconnects != 0; })) << "what the old secret proved has ended";
  expect_all();
  EXPECT_EQ(tier_->statistics().copies_lost, 0u);
  EXPECT_EQ(service_->statistics().rejected, 0u);
}

TEST_F(SecretRotation, AnotherTenantGetsNeitherTheNodeIdNorThePages) {
  store_all();
  at_lender_.write(first_ + next_ + others_);
  look_at_files();
  EXPECT_TRUE(lets_in(NodeId{7}, others_, ping(NodeId{7})));
  EXPECT_FALSE(lets_in(NodeId{kNode}, others_, ping(NodeId{kNode})));
  EXPECT_EQ(service_->statistics().rejected, 1u);
  expect_all();
}

TEST_F(SecretRotation, AnEndIsReportedUnderTheNextSecret) {
  store_all();
  at_lender_.write(first_ + next_ + others_);
  look_at_files();
  const wire::End end{.node = kNode, .incarnation = 1};
  EXPECT_TRUE(lets_in(NodeId{7}, next_, request(NodeId{7}, wire::Kind::end, wire::body_of(end))));
  EXPECT_TRUE(until([&] { return service_->statistics().pages == 0; }));
}

}  // namespace
}  // namespace vmem::rdma
