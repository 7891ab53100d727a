// What a lender does with its connections, over a transport whose peers do as the test says.
#include "rdma/memory_service.hpp"

#include <gmock/gmock.h>

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;

constexpr PeerId kFirst{1}, kSecond{2};

class ScriptedTransport final : public Transport {
 public:
  std::vector<Event> events;
  std::vector<PeerId> closed;
  std::function<void()> on_progress = [] {};

  void connected(PeerId peer, NodeId node, std::string identity = "") {
    Event& event = events.emplace_back();
    event.peer = peer;
    event.what.emplace<Connected>() = {{node, Incarnation{1}}, false, "scripted", std::move(identity)};
  }
  void gone(PeerId peer) {
    Event& event = events.emplace_back();
    event.peer = peer;
    event.what.emplace<Gone>().reason = Reason::closed;
  }

  const std::string& address() const noexcept override { return address_; }
  Result<std::unique_ptr<Slab>> register_slab(Bytes) override { return fail(VMEM_ERROR_UNSUPPORTED, "no memory here"); }
  Result<PeerId> connect(const std::string&, std::uint64_t) override { return fail(VMEM_ERROR_UNSUPPORTED, "nobody"); }
  Status send(std::span<Send>) override { return {}; }
  void close(PeerId peer) override { closed.push_back(peer); }
  void poll(std::vector<Event>& to) override { to.swap(events); }  // the service's are empty
  bool wait(std::uint64_t) override { return !events.empty(); }
  bool progress() override {
    on_progress();
    return false;
  }
  void idle(std::uint64_t) override {}
  void wake() noexcept override {}

 private:
  const std::string address_ = "nowhere";
};

class Service : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(service.start(transport)); }
  ManualClock clock;
  ScriptedTransport transport;
  MemoryService service{{.clock = &clock}};
};

TEST_F(Service, WhoConnectsWhileItStopsIsSentAwayAndNotWaitedFor) {
  transport.connected(kFirst, NodeId{7});
  service.step();
  int turns = 0;
  transport.on_progress = [&] {
    if (++turns == 1) transport.connected(kSecond, NodeId{8});
    if (turns == 3) transport.gone(kFirst);
    if (turns == 1000) transport.gone(kSecond);  // it would be served until then
  };
  service.stop();
  EXPECT_EQ(turns, 3);
  EXPECT_THAT(transport.closed, ElementsAre(kFirst, kSecond));
}

TEST_F(Service, AnotherTenantDoesNotTakeANodesPlace) {
  transport.connected(kFirst, NodeId{7}, "team-a");
  service.step();
  transport.connected(kSecond, NodeId{7}, "team-b");
  service.step();
  EXPECT_THAT(transport.closed, ElementsAre(kSecond));
  transport.gone(kFirst);
  service.step();
}

TEST_F(Service, TheSameTenantTakesItsOwnPlaceAgain) {
  transport.connected(kFirst, NodeId{7}, "team-a");
  service.step();
  transport.connected(kSecond, NodeId{7}, "team-a");
  service.step();
  EXPECT_THAT(transport.closed, ElementsAre(kFirst));
  transport.gone(kFirst);
  transport.gone(kSecond);
  service.step();
}

TEST_F(Service, WhoIsSilentIsClosedOnce) {
  transport.connected(kFirst, NodeId{7});
  service.step();
  clock.advance(61'000'000);
  EXPECT_FALSE(service.step());
  EXPECT_FALSE(service.step());
  EXPECT_THAT(transport.closed, ElementsAre(kFirst));
  transport.gone(kFirst);
  service.step();
}

TEST_F(Service, ANodesNewConnectionTakesThePlaceOfItsOldOne) {
  transport.connected(kFirst, NodeId{7});
  transport.connected(kSecond, NodeId{7});
  service.step();
  EXPECT_THAT(transport.closed, ElementsAre(kFirst));
  transport.gone(kFirst);
  service.step();
  transport.on_progress = [&] { transport.gone(kSecond); };
  service.stop();
  EXPECT_THAT(transport.closed, ElementsAre(kFirst, kSecond));
}

}  // namespace
}  // namespace vmem::rdma
