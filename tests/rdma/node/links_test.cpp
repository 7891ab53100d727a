#include "rdma/node/links.hpp"

#include <gmock/gmock.h>

#include <optional>

#include "rdma/node/scripted_transport.hpp"

namespace vmem::rdma {
namespace {

using ::testing::ElementsAre;

class Heard final : public LinkUser {
 public:
  Status up(LinkId, const Connected&) override {
    ++ups;
    return answer;
  }
  void down(LinkId link, const LinkDown& down) override {
    downs.push_back(down);
    if (on_down) on_down(link);
  }
  int ups = 0;
  Status answer;
  std::vector<LinkDown> downs;
  std::function<void(LinkId)> on_down;
};

class LinksTest : public ::testing::Test {
 protected:
  void pass(std::uint64_t us) {
    clock.advance(us);
    while (host->step()) {
    }
  }
  std::vector<std::string> tried() const {
    std::vector<std::string> addresses;
    for (const auto& each : transport.connects) addresses.push_back(each.first);
    return addresses;
  }
  // The last connection ends.
  void end(Reason reason, const std::string& why) {
    transport.gone(transport.connects.back().second, reason, why);
    pass(0);
  }
  void reach() {
    transport.reached(NodeId{9});
    pass(0);
  }
  ManualClock clock;
  ScriptedTransport* made = nullptr;
  const std::unique_ptr<Node> host = scripted_node(clock, made);
  ScriptedTransport& transport = *made;
  Heard user;
  const LinkTimes times;
};

TEST_F(LinksTest, EachAddressIsTriedAtOnceAndThenAllAreGivenARest) {
  host->links().add({"first", "second"}, user);
  pass(0);
  EXPECT_THAT(tried(), ElementsAre("first"));
  end(Reason::lost, "no route");
  EXPECT_THAT(tried(), ElementsAre("first", "second"));
  end(Reason::lost, "no route either");
  pass(times.reconnect_us - 1);
  EXPECT_EQ(tried().size(), 2u);
  pass(1);
  EXPECT_THAT(tried(), ElementsAre("first", "second", "first"));
  ASSERT_EQ(user.downs.size(), 2u);
  EXPECT_EQ(user.downs[1].why, "no route either");
  EXPECT_FALSE(user.downs[1].was_up);
}

TEST_F(LinksTest, ALinkThatLastedIsMadeAgainAtOnceByItsFirstAddress) {
  const LinkId link = host->links().add({"first", "second"}, user);
  pass(0);
  end(Reason::lost, "");
  reach();
  EXPECT_EQ(user.ups, 1);
  EXPECT_TRUE(host->links().is_up(link));
  clock.advance(times.reconnect_us);
  end(Reason::lost, "cut");
  EXPECT_THAT(tried(), ElementsAre("first", "second", "first"));
  EXPECT_TRUE(user.downs.back().was_up);
  reach();
  end(Reason::lost, "cut again");
  EXPECT_EQ(tried().size(), 3u) << "one that breaks at once is given a rest";
}

TEST_F(LinksTest, ANodeThatFallsSilentIsReachedByTheNextAddressAtOnce) {
  const LinkId link = host->links().add({"first", "second"}, user);
  pass(0);
  reach();
  using Addresses = std::vector<std::string>;
  for (const auto& expected : {Addresses{"first", "second"}, Addresses{"first", "second", "first"}}) {
    pass(times.reconnect_us);
    host->links().late(host->links().peer(link));
    end(Reason::closed, "closed here");
    EXPECT_EQ(user.downs.back().reason, Reason::timeout);
    EXPECT_EQ(tried(), expected);
    reach();
  }
}

TEST_F(LinksTest, ANodeThatItsUserRefusesIsClosedForThatReason) {
  const LinkId link = host->links().add({"there"}, user);
  user.answer = fail(VMEM_ERROR_INVALID_OPTION, "not this one");
  pass(0);
  reach();
  EXPECT_FALSE(host->links().is_up(link));
  EXPECT_THAT(transport.closed, ElementsAre(transport.connects[0].second));
  end(Reason::closed, "closed here");
  ASSERT_EQ(user.downs.size(), 1u);
  EXPECT_EQ(user.downs[0].why, "not this one");
}

TEST_F(LinksTest, SilenceIsPingedAndAPongThatDoesNotComeClosesTheConnection) {
  const LinkId link = host->links().add({"there"}, user);
  pass(0);
  reach();
  pass(times.ping_us - 1);
  EXPECT_TRUE(transport.sent.empty());
  pass(1);
  ASSERT_EQ(transport.sent.size(), 1u);
  const wire::RequestId first = transport.header(0).request;
  EXPECT_EQ(transport.header(0).kind, wire::Kind::ping);
  transport.says(host->links().peer(link), first, wire::Kind::pong, {});
  pass(0);
  pass(times.ping_us);
  EXPECT_EQ(transport.sent.size(), 2u);
  EXPECT_TRUE(transport.closed.empty());
  pass(times.request_us);
  EXPECT_EQ(transport.closed.size(), 1u);
  pass(times.request_us);
  EXPECT_EQ(transport.closed.size(), 1u) << "once";
  end(Reason::closed, "closed here");
  ASSERT_EQ(user.downs.size(), 1u);
  EXPECT_EQ(user.downs[0].reason, Reason::timeout);
  EXPECT_EQ(user.downs[0].why, "it did not answer within 2s");
}

TEST_F(LinksTest, ARequestOfTheNodeIsWordOfIt) {
  const LinkId link = host->links().add({"there"}, user);
  pass(0);
  reach();
  pass(times.ping_us - 1);
  transport.says(host->links().peer(link), NodeId{9}, wire::Kind::ping, {});
  pass(0);
  pass(times.ping_us - 1);
  ASSERT_EQ(transport.sent.size(), 1u);
  EXPECT_EQ(transport.header(0).kind, wire::Kind::pong);
  pass(1);
  ASSERT_EQ(transport.sent.size(), 2u);
  EXPECT_EQ(transport.header(1).kind, wire::Kind::ping);
}

TEST_F(LinksTest, AnAddressThatCannotBeTriedIsToldAsOneThatFailed) {
  transport.next_connect = fail(VMEM_ERROR_INVALID_OPTION, "malformed");
  host->links().add({"there"}, user);
  pass(0);
  ASSERT_EQ(user.downs.size(), 1u);
  EXPECT_EQ(user.downs[0].why, "malformed");
}

TEST_F(LinksTest, ARemovedLinkHasAPeerUntilItsConnectionIsGone) {
  const LinkId link = host->links().add({"there"}, user);
  pass(0);
  reach();
  host->links().remove(link);
  EXPECT_EQ(transport.closed.size(), 1u);
  EXPECT_NE(host->links().peer(link), PeerId{});
  EXPECT_FALSE(host->links().is_up(link));
  end(Reason::closed, "");
  EXPECT_EQ(host->links().peer(link), PeerId{});
  pass(10 * times.reconnect_us);
  EXPECT_EQ(tried().size(), 1u);
  EXPECT_TRUE(user.downs.empty());
}

TEST_F(LinksTest, AUserMayRemoveAndAddLinksWhenOneIsDown) {
  user.on_down = [&](LinkId link) {
    host->links().remove(link);
    if (user.downs.size() == 1) host->links().add({"other"}, user);
  };
  host->links().add({"there"}, user);
  pass(0);
  end(Reason::lost, "");
  pass(times.reconnect_us);
  EXPECT_THAT(tried(), ElementsAre("there", "other"));
  transport.next_connect = fail(VMEM_ERROR_INVALID_OPTION, "malformed");
  end(Reason::lost, "");
  pass(10 * times.reconnect_us);
  EXPECT_EQ(tried().size(), 2u);
}

}  // namespace
}  // namespace vmem::rdma
