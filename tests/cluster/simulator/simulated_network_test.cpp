#include "cluster/simulator/simulated_network.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace vmem::cluster::simulator {
namespace {

class SimulatedNetworkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    network.attach(2, [this](Address from, const std::string& message) {
      EXPECT_EQ(from, 1u);
      received.push_back(message);
    });
  }
  void send_hundred() {
    for (int i = 0; i < 100; ++i) network.send(1, 2, std::to_string(100 + i));
  }
  EventQueue queue;
  SimulatedNetwork network{queue, 7};
  std::vector<std::string> received;
};

TEST_F(SimulatedNetworkTest, MessagesArriveWithinTheirDelayAndOvertake) {
  network.usual() = {.least_us = 50, .most_us = 90};
  send_hundred();
  queue.run_until(queue.now_us() + 49);
  EXPECT_TRUE(received.empty());
  queue.run_until(queue.now_us() + 41);
  EXPECT_EQ(received.size(), 100u);
  EXPECT_FALSE(std::ranges::is_sorted(received)) << "they overtake each other";
}

TEST_F(SimulatedNetworkTest, AnOrderedLinkKeepsTheOrder) {
  network.link(1, 2).ordered = true;
  send_hundred();
  queue.run_until(1'000'000);
  EXPECT_EQ(received.size(), 100u);
  EXPECT_TRUE(std::ranges::is_sorted(received));
}

TEST_F(SimulatedNetworkTest, SomeAreLostAndSomeComeTwice) {
  network.link(1, 2).lost = 500;
  send_hundred();
  queue.run_until(1'000'000);
  EXPECT_GT(received.size(), 20u);
  EXPECT_LT(received.size(), 80u);
  received.clear();
  network.link(1, 2) = {.doubled = 1000};
  send_hundred();
  queue.run_until(2'000'000);
  EXPECT_EQ(received.size(), 200u);
}

TEST_F(SimulatedNetworkTest, ACutStopsOneDirectionAndWhatIsInFlight) {
  int back = 0;
  network.attach(1, [&](Address, const std::string&) { ++back; });
  network.send(1, 2, "in flight");
  network.link(1, 2).cut = true;
  network.send(1, 2, "sent after");
  network.send(2, 1, "back");
  queue.run_until(1'000'000);
  EXPECT_TRUE(received.empty());
  EXPECT_EQ(back, 1);
  network.link(1, 2).cut = false;
  network.send(1, 2, "healed");
  queue.run_until(2'000'000);
  EXPECT_EQ(received, std::vector<std::string>{"healed"});
}

TEST_F(SimulatedNetworkTest, MessagesGoToWhoeverIsAttachedWhenTheyArrive) {
  network.send(1, 2, "for the first");
  network.detach(2);
  queue.run_until(1'000);
  EXPECT_TRUE(received.empty());
  network.send(1, 2, "for the second");
  int second = 0;
  network.attach(2, [&](Address, const std::string&) { ++second; });
  queue.run_until(2'000);
  EXPECT_EQ(second, 1);
}

TEST_F(SimulatedNetworkTest, ASeedRepeatsARun) {
  const auto play = [](std::uint64_t seed) {
    EventQueue events;
    SimulatedNetwork net(events, seed);
    net.usual() = {.lost = 300, .doubled = 300};
    std::string all;
    net.attach(2, [&](Address, const std::string& message) { all += message; });
    for (int i = 0; i < 50; ++i) net.send(1, 2, std::to_string(i));
    events.run_until(1'000);
    return all;
  };
  EXPECT_EQ(play(1), play(1));
  EXPECT_NE(play(1), play(2));
}

}  // namespace
}  // namespace vmem::cluster::simulator
