#include "rdma/stream/handshake_budget.hpp"

#include <gtest/gtest.h>

namespace vmem::rdma::stream {
namespace {

constexpr HandshakeBudget::Limits kLimits{
    .host_us = 1000, .host_us_per_s = 100, .all_us = 2500, .all_us_per_s = 500, .hosts = 4};
constexpr std::uint64_t kSecond = 1'000'000;

TEST(HandshakeBudget, AHostThatHasUsedUpItsShareWaits) {
  HandshakeBudget budget(kLimits);
  EXPECT_TRUE(budget.may_begin("a", 0));
  budget.pay("a", 999, 0);
  EXPECT_TRUE(budget.may_begin("a", 0));
  budget.pay("a", 1, 0);
  EXPECT_FALSE(budget.may_begin("a", 0));
  EXPECT_TRUE(budget.may_begin("b", 0)) << "others do not";
  EXPECT_FALSE(budget.may_begin("a", kSecond / 200)) << "half a microsecond of time has come back";
  EXPECT_TRUE(budget.may_begin("a", kSecond / 50));
}

TEST(HandshakeBudget, ManyHostsTogetherHaveALimitToo) {
  HandshakeBudget budget(kLimits);
  for (const char* host : {"a", "b", "c"}) budget.pay(host, 900, 0);
  EXPECT_FALSE(budget.may_begin("d", 0));
  EXPECT_TRUE(budget.may_begin("d", kSecond));
}

TEST(HandshakeBudget, AskingOftenLosesNothing) {
  HandshakeBudget budget(kLimits);
  budget.pay("a", 1000, 0);
  for (std::uint64_t now = 0; now < kSecond / 50; now += 7) (void)budget.may_begin("a", now);
  EXPECT_TRUE(budget.may_begin("a", kSecond / 50));
}

TEST(HandshakeBudget, HostsAreForgottenWhenTheyOweNothing) {
  HandshakeBudget budget(kLimits);
  for (const char* host : {"a", "b", "c", "d"}) budget.pay(host, 10, 0);
  budget.pay("e", 1000, 0);
  EXPECT_TRUE(budget.may_begin("e", 0)) << "there is no room for it yet";
  budget.pay("e", 1000, kSecond);
  EXPECT_FALSE(budget.may_begin("e", kSecond));
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
