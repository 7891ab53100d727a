#include "rdma/trust/handshake_budget.hpp"

#include <gtest/gtest.h>

#include <string>

namespace vmem::rdma::stream {
namespace {

constexpr std::uint64_t kSecond = 1'000'000;
constexpr std::uint64_t kLately = 10 * kSecond, kProved = 100 * kSecond;
constexpr HandshakeLimits kLimits{.host_us = 1000,
                                  .host_us_per_s = 100,
                                  .all_us = 2500,
                                  .all_us_per_s = 500,
                                  .most_us = 5000,
                                  .lately_us = kLately,
                                  .proved_us = kProved,
                                  .hosts = 4};

TEST(HandshakeBudget, AHostThatHasUsedUpItsShareWaits) {
  HandshakeBudget budget(kLimits);
  EXPECT_TRUE(budget.admit("a", 0));
  budget.pay("a", 999, 0);
  EXPECT_TRUE(budget.admit("a", 0));
  budget.pay("a", 1, 0);
  EXPECT_FALSE(budget.admit("a", 0));
  EXPECT_TRUE(budget.admit("b", 0)) << "others do not";
  EXPECT_FALSE(budget.admit("a", kSecond / 200)) << "half a microsecond of time has come back";
  EXPECT_TRUE(budget.admit("a", kSecond / 50));
}

void spend(HandshakeBudget& budget, std::uint64_t now) {
  for (const char* host : {"a", "b", "c"}) budget.pay(host, 900, now);
}

TEST(HandshakeBudget, ManyHostsTogetherHaveALimitToo) {
  HandshakeBudget budget(kLimits);
  spend(budget, 0);
  for (const char* host : {"a", "b", "c"}) EXPECT_FALSE(budget.admit(host, 0));
  EXPECT_TRUE(budget.admit("a", kSecond));
}

TEST(HandshakeBudget, AHostThatHasNotTriedLatelyGetsOneHandshakeWhenTheSharedLimitIsSpent) {
  HandshakeBudget budget(kLimits);
  spend(budget, 0);
  EXPECT_TRUE(budget.admit("d", 0));
  EXPECT_FALSE(budget.admit("d", 0)) << "one";
  for (std::uint64_t now = 0; now < kLately; now += kSecond / 2) {
    spend(budget, now);
    EXPECT_FALSE(budget.admit("d", now));
  }
}

TEST(HandshakeBudget, ATokenThatCameBackDoesNotMakeAHostNewAgain) {
  HandshakeBudget budget(kLimits);
  spend(budget, 0);
  budget.pay("d", 1, 0);
  budget.pay("d", 400, kSecond / 2);
  EXPECT_FALSE(budget.admit("d", kSecond / 2)) << "it owes next to nothing, but has tried";
}

TEST(HandshakeBudget, NewHostsHaveALimitTogether) {
  HandshakeBudget budget(kLimits);
  budget.pay("a", kLimits.most_us - 1, 0);
  EXPECT_TRUE(budget.admit("b", 0));
  budget.pay("b", 1, 0);
  EXPECT_FALSE(budget.admit("c", 0));
}

TEST(HandshakeBudget, NoMoreNewHostsAreLetInThanCanBeRemembered) {
  HandshakeBudget budget(kLimits);
  spend(budget, 0);
  EXPECT_TRUE(budget.admit("d", 0));
  EXPECT_FALSE(budget.admit("e", 0));
}

TEST(HandshakeBudget, AHostThatHasProvedItselfHasItsOwnLimitOnly) {
  HandshakeBudget budget(kLimits);
  budget.proved("d", 0);
  budget.pay("a", kLimits.most_us, 0);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(budget.admit("d", 0));
  budget.pay("d", kLimits.host_us, 0);
  EXPECT_FALSE(budget.admit("d", 0)) << "strangers at its address use its limit";
  EXPECT_TRUE(budget.admit("d", kSecond));
}

TEST(HandshakeBudget, StrangersAtTheAddressesOfNodesSpendNothingOfTheOthers) {
  HandshakeBudget budget(kLimits);
  for (const char* node : {"a", "b", "c"}) {
    budget.proved(node, 0);
    budget.pay(node, 10 * kLimits.most_us, 0);
  }
  EXPECT_TRUE(budget.admit("d", 0));
  EXPECT_TRUE(budget.admit("d", 0));
}

TEST(HandshakeBudget, AProofCountsForAWhile) {
  HandshakeBudget budget(kLimits);
  budget.proved("d", 0);
  budget.pay("a", 100 * kLimits.most_us, kProved);
  EXPECT_TRUE(budget.admit("d", kProved - 1));
  EXPECT_FALSE(budget.admit("d", kProved));
}

TEST(HandshakeBudget, StrangersDoNotMakeItForgetWhoHasProvedItself) {
  HandshakeBudget budget(kLimits);
  budget.proved("node", 0);
  for (int i = 0; i < 100; ++i) budget.pay("stranger" + std::to_string(i), 1000, 0);
  EXPECT_TRUE(budget.admit("node", 0));
}

TEST(HandshakeBudget, AskingOftenLosesNothing) {
  HandshakeBudget budget(kLimits);
  budget.pay("a", 1000, 0);
  for (std::uint64_t now = 0; now < kSecond / 50; now += 7) (void)budget.admit("a", now);
  EXPECT_TRUE(budget.admit("a", kSecond / 50));
}

TEST(HandshakeBudget, HostsAreForgottenWhenTheyOweNothing) {
  HandshakeBudget budget(kLimits);
  for (const char* host : {"a", "b", "c", "d"}) budget.pay(host, 10, 0);
  budget.pay("e", 1000, 0);
  EXPECT_TRUE(budget.admit("e", 0)) << "there is no room for it yet";
  budget.pay("e", 1000, kLately);
  EXPECT_FALSE(budget.admit("e", kLately));
}

TEST(HandshakeBudget, ANetworkOfIpv6AddressesIsOneHost) {
  const auto host = [](const char* text) { return HandshakeBudget::host_of(*SocketAddress::parse(text)); };
  EXPECT_EQ(host("[2001:db8::1]:1"), host("[2001:db8::ffff:2]:2"));
  EXPECT_NE(host("[2001:db8::1]:1"), host("[2001:db8:0:1::1]:1"));
  EXPECT_EQ(host("[::ffff:10.0.0.1]:1"), host("[::ffff:10.0.0.1]:2"));
  EXPECT_NE(host("10.0.0.1:1"), host("10.0.0.2:1"));
}

}  // namespace
}  // namespace vmem::rdma::stream
