#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/registry/etcd/address.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(EtcdAddress, EveryPartIsRead) {
  const auto address =
      parse_etcd_address("etcds://us%40er:p%3aa%2Fs%25@10.0.0.1:2379,[fe80::1]:1,gpu-07.a_b:65535/prod-1.a_B");
  ASSERT_TRUE(address) << address.error().message;
  EXPECT_EQ(*address, (EtcdAddress{.tls = true,
                                   .user = "us@er",
                                   .password = "p:a/s%",
                                   .endpoints = {"10.0.0.1:2379", "[fe80::1]:1", "gpu-07.a_b:65535"},
                                   .cluster = "prod-1.a_B"}));
}

TEST(EtcdAddress, UserAndPasswordAreOptional) {
  const auto plain = parse_etcd_address("etcd://h:2379/c");
  ASSERT_TRUE(plain);
  EXPECT_EQ(*plain, (EtcdAddress{.tls = false, .user = "", .password = "", .endpoints = {"h:2379"}, .cluster = "c"}));
  const auto user = parse_etcd_address("etcd://me@h:2379/c");
  ASSERT_TRUE(user);
  EXPECT_EQ(user->user, "me");
  EXPECT_EQ(user->password, "");
}

TEST(EtcdAddress, AWrongOneSaysWhatIsWrongAndWhatIsAccepted) {
  const std::pair<const char*, const char*> wrong[] = {
      {"", "does not begin with etcd://"},
      {"http://h:1/c", "does not begin with etcd://"},
      {"ETCD://h:1/c", "does not begin with etcd://"},
      {"etcd://h:1", "no /NAME"},
      {"etcd://h:1/", "no cluster name"},
      {"etcd://h:1/a b", "no cluster name"},
      {"etcd://h:1/a/b", "a '/' in the cluster's name 'a/b'"},
      {"etcd://me:secret@h:1,g:2/a/b/c", "a '/' in the cluster's name 'a/b/c'"},
      {"etcd:///c", "no port in ''"},
      {"etcd://h/c", "no port in 'h'"},
      {"etcd://[::1]/c", "no port in '[::1]'"},
      {"etcd://h:0/c", "no port from 1 to 65535 in 'h:0'"},
      {"etcd://h:65536/c", "no port from 1 to 65535"},
      {"etcd://h:+1/c", "no port from 1 to 65535"},
      {"etcd://h:/c", "no port from 1 to 65535"},
      {"etcd://:1/c", "no host"},
      {"etcd://h:1,/c", "no port in ''"},
      {"etcd://a?b:1/c", "no host"},
      {"etcd://a/b:1/c", "no host"},
      {"etcd://::1:2379/c", "IPv6 address without brackets"},
      {"etcd://[h]:1/c", "no host"},
      {"etcd://[::1%eth0]:1/c", "no host"},
      {"etcd://@h:1/c", "empty user"},
      {"etcd://:secret@h:1/c", "empty user"},
      {"etcd://a%4:b@h:1/c", "% without two hexadecimal digits"},
      {"etcd://a:%zz@h:1/c", "% without two hexadecimal digits"},
      {"etcd://a:%+1@h:1/c", "% without two hexadecimal digits"},
  };
  for (const auto& [text, why] : wrong) {
    const auto address = parse_etcd_address(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().status, VMEM_ERROR_INVALID_OPTION);
    EXPECT_THAT(address.error().message, HasSubstr(why));
    EXPECT_THAT(address.error().message, HasSubstr("accepted: etcd://[USER[:PASSWORD]@]HOST:PORT"));
  }
  std::string many = "etcd://h:1";
  for (std::size_t i = 0; i < kMostEndpoints; ++i) many += ",h:1";
  EXPECT_FALSE(parse_etcd_address(many + "/c"));
}

TEST(EtcdAddress, ThePasswordIsInNoMessage) {
  for (const char* text :
       {"etcd://me:geheim@h/c", "etcd://me:geheim@h:1", "http://me:geheim@h:1/c", "etcd://me:ge@geheim@/c",
        "etcd://me:%geheim@h:1/c", "me:geheim@h", "etcd://me:x/geheim/@h:1", "etcd://me:a,geheim@h/"}) {
    const auto address = parse_etcd_address(text);
    ASSERT_FALSE(address) << text;
    EXPECT_THAT(address.error().message, Not(HasSubstr("geheim"))) << text;
  }
}

}  // namespace
}  // namespace vmem::cluster
