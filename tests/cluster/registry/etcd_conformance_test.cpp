#include "cluster/registry/etcd_client.hpp"

namespace vmem::cluster {
namespace {

// One server for the tests of this program that change nothing about it; each has its own cluster.
EtcdServers& shared_server() {
  static const std::unique_ptr<EtcdServers> server = start_etcd(1);
  return *server;
}

std::string own_address() {
  static int last = 0;
  return address_of(shared_server(), fmt::format("cluster-{}", ++last));
}

struct EtcdWorld {
  Registry& client(int i) { return i == 0 ? a.registry() : b.registry(); }
  void pass() { a.pass(); }

  const std::string address = own_address();
  EtcdClient a{address}, b{address};
};

TEST(EtcdRegistry, ClustersDoNotSeeEachOther) {
  EtcdClient one(address_of(shared_server(), "one")), longer(address_of(shared_server(), "one.more"));
  ASSERT_TRUE(one.asker().commit({put("a", "1")}));
  ASSERT_TRUE(longer.asker().commit({put("a", "2"), put("b", "2")}, {absent("a")}));
  EXPECT_THAT(one.asker().keys(), ::testing::ElementsAre("a"));
  EXPECT_THAT(longer.asker().keys(), ::testing::ElementsAre("a", "b"));
  EXPECT_EQ(one.asker().read("a").at(0).value, "1");
}

TEST(EtcdRegistry, AFileThatCannotBeReadIsNamed) {
  const auto created = EtcdRegistry::create({.address = *parse_etcd_address("etcds://127.0.0.1:1/c"),
                                             .tls = {.authorities = "/nowhere/ca.crt", .certificate = "", .key = ""},
                                             .try_us = 1'000'000,
                                             .on_ready = {}});
  ASSERT_FALSE(created);
  EXPECT_EQ(created.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(created.error().message, ::testing::HasSubstr("'/nowhere/ca.crt', cannot be read"));
}

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Etcd, RegistryConformance, EtcdWorld);

}  // namespace vmem::cluster
