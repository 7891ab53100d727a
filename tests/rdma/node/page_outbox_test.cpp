// In which order a node sends the pages that others asked for.
#include "rdma/node/page_outbox.hpp"

#include <gmock/gmock.h>

#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using wire::Order;

constexpr PeerId kMuch{1}, kLittle{2};

class PageOutboxTest : public ::testing::Test {
 protected:
  void SetUp() override {
    transport.connected(kMuch, NodeId{7});
    transport.connected(kLittle, NodeId{8});
    host->step();
  }
  void add(PeerId to, int name, Order order = Order::foreground) {
    outbox().add(to, order, [this, name]() -> std::optional<SendId> {
      went.push_back(name);
      if (unsent == name) return std::nullopt;
      return SendId{1000 + static_cast<std::uint64_t>(name)};
    });
  }
  void sent(int name) {
    transport.push(kMuch, Sent{SendId{1000 + static_cast<std::uint64_t>(name)}});
    host->step();
  }
  PageOutbox& outbox() { return host->outbox(); }

  ManualClock clock;
  ScriptedTransport* made = nullptr;
  const std::unique_ptr<Node> host = scripted_node(clock, made);
  ScriptedTransport& transport = *made;
  std::vector<int> went;
  int unsent = 0;
};

TEST_F(PageOutboxTest, WhoAsksForMuchDelaysAnothersPageByNoQueue) {
  for (int i = 1; i <= 20; ++i) add(kMuch, i);
  EXPECT_THAT(went, ElementsAre(1)) << "the others wait";
  add(kLittle, 100);
  EXPECT_THAT(went, ElementsAre(1, 100));
  EXPECT_THAT(outbox().waiting(), ElementsAre(kMuch));
  sent(1);
  EXPECT_THAT(went, ElementsAre(1, 100, 2));
}

TEST_F(PageOutboxTest, APageThatSomebodyWaitsForGoesNext) {
  add(kMuch, 1, Order::ahead);
  add(kMuch, 2, Order::ahead);
  add(kMuch, 3, Order::background);
  add(kMuch, 4, Order::foreground);
  sent(1);
  sent(4);
  sent(2);
  EXPECT_THAT(went, ElementsAre(1, 4, 2, 3));
}

TEST_F(PageOutboxTest, NobodyIsPassedForEver) {
  add(kMuch, 0);
  add(kMuch, 100, Order::background);
  for (int i = 1; i < 20; ++i) add(kMuch, i);
  for (int i = 0; i < 9; ++i) sent(i);
  EXPECT_EQ(went.back(), 100) << "eight have passed it";
}

TEST_F(PageOutboxTest, PagesReadAheadPassNoneInTheBackgroundForEver) {
  add(kMuch, 0, Order::ahead);
  add(kMuch, 100, Order::background);
  for (int i = 1; i < 20; ++i) add(kMuch, i, Order::ahead);
  for (int i = 0; i < 9; ++i) sent(i);
  EXPECT_EQ(went.back(), 100) << "eight have passed it";
}

TEST_F(PageOutboxTest, EachChannelHasAPage) {
  constexpr PeerId kWide{3};
  transport.push(kWide, Connected{.node = {NodeId{9}, Incarnation{1}}, .path = "", .channels = 3});
  host->step();
  for (int i = 1; i <= 5; ++i) add(kWide, i);
  EXPECT_THAT(went, ElementsAre(1, 2, 3));
}

TEST_F(PageOutboxTest, APageThatIsNotSentHoldsUpNothing) {
  unsent = 1;
  add(kMuch, 1);
  add(kMuch, 2);
  EXPECT_THAT(went, ElementsAre(1, 2));
}

// The sends fail, which ends the pages.
TEST_F(PageOutboxTest, AllPagesForANodeThatIsGoneGo) {
  for (int i = 1; i <= 3; ++i) add(kMuch, i);
  transport.gone(kMuch);
  host->step();
  EXPECT_THAT(went, ElementsAre(1, 2, 3));
  EXPECT_THAT(outbox().waiting(), IsEmpty());
  add(kMuch, 4);
  EXPECT_THAT(went, ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace vmem::rdma
