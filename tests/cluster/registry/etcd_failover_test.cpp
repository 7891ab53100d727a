#include "cluster/registry/etcd_client.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

Commit only_put(std::string key) { return {.conditions = {}, .edits = {put(std::move(key), "value")}}; }

// Of one try, in tests where servers do not answer: long enough for an election.
constexpr std::uint64_t kTryUs = 3'000'000;

TEST(EtcdFailover, RequestsGoOnWhileOneOfThreeIsStopped) {
  const auto servers = start_etcd(3);
  EtcdClient client(address_of(*servers), kTryUs);
  (void)client.insist(only_put("a"));
  const LeaseId lease = std::get<Granted>(client.insist(GrantLease{1000}).what).lease;
  (*servers)[0].stop();
  // Its outcome is unknown, because it may have been sent to the server that is stopped.
  const auto commit = client.asker().ask(Commit{.conditions = {absent("b")}, .edits = {put("b", "")}});
  const auto* error = std::get_if<Error>(&commit.what);
  EXPECT_TRUE(error == nullptr || error->status == VMEM_ERROR_TIMEOUT);
  EXPECT_GT(std::get<Renewed>(client.insist(RenewLease{lease}).what).seconds, 0u);
  (void)client.insist(only_put("c"));
  const Reply all = client.insist(ReadPrefix{""});
  std::set<std::string> keys;
  for (const Record& each : std::get<Read>(all.what).records) keys.insert(each.key);
  EXPECT_TRUE(keys.contains("a") && keys.contains("c"));
  (*servers)[0].resume();
}

TEST(EtcdFailover, RequestsGoOnWhileOneOfThreeIsDead) {
  const auto servers = start_etcd(3);
  EtcdClient client(address_of(*servers), kTryUs);
  (void)client.insist(only_put("a"));
  (*servers)[0].kill();
  (void)client.insist(only_put("b"));
  EXPECT_EQ(std::get<Read>(client.insist(ReadPrefix{""}).what).records.size(), 2u);
}

TEST(EtcdFailover, WhenAllAreAwayRequestsEndAndComeBackWithThem) {
  const auto servers = start_etcd(3);
  EtcdClient client(address_of(*servers), 500'000);
  (void)client.insist(only_put("a"));
  for (std::size_t i = 0; i < 3; ++i) (*servers)[i].stop();
  for (const RegistryRequest& each :
       {RegistryRequest(ReadPrefix{""}), RegistryRequest(only_put("b")), RegistryRequest(GrantLease{5}),
        RegistryRequest(RenewLease{LeaseId{1}}), RegistryRequest(EndLease{LeaseId{1}})})
    EXPECT_EQ(client.error(each).status, VMEM_ERROR_TIMEOUT);
  for (std::size_t i = 0; i < 3; ++i) (*servers)[i].resume();
  const Reply read = client.insist(ReadPrefix{"a"});
  EXPECT_EQ(std::get<Read>(read.what).records.size(), 1u);
}

TEST(EtcdFailover, ARestartedServerIsFoundAgain) {
  const auto servers = start_etcd(1);
  EtcdClient client(address_of(*servers));
  ASSERT_TRUE(client.asker().commit({put("a", "kept")}));
  (*servers)[0].kill();
  const Error refused = client.error(only_put("b"));
  EXPECT_EQ(refused.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(refused.message, HasSubstr("http://" + servers->endpoint(0)));
  EXPECT_THAT(refused.message, HasSubstr("check that etcd"));
  (*servers)[0].start();
  EXPECT_EQ(std::get<Read>(client.insist(ReadPrefix{""}).what).records.at(0).value, "kept");
}

TEST(EtcdFailover, AStoppedServerHoldsUpNeitherPostNorTheEnd) {
  const auto servers = start_etcd(1);
  EtcdClient client(address_of(*servers), 60'000'000);
  ASSERT_TRUE(client.asker().commit({put("a", "")}));
  (*servers)[0].stop();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 10; ++i) (void)client.registry().post(ReadPrefix{""});
  std::vector<Reply> replies;
  client.registry().poll(replies);
  client.end();
  // 100 ms on an idle machine; a request's limit is a minute.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  (*servers)[0].resume();
}

}  // namespace
}  // namespace vmem::cluster
