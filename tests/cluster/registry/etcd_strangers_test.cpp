#include "cluster/registry/etcd_client.hpp"
#include "cluster/registry/stranger.hpp"

namespace vmem::cluster {
namespace {

using ::testing::HasSubstr;

Error asked_of(const Stranger& stranger, std::uint64_t try_us, const RegistryRequest& request = ReadPrefix{""}) {
  EtcdClient client(fmt::format("etcd://{}/test", stranger.endpoint()), try_us);
  return client.error(request);
}

void send_without_end(const Stranger::Visit& visit, std::string_view piece) {
  while (::send(visit.socket, piece.data(), piece.size(), MSG_NOSIGNAL) > 0) {
  }
}

TEST(EtcdStrangers, WhatIsNotEtcdIsNamed) {
  const std::pair<std::string, const char*> answers[] = {
      {"SSH-2.0-OpenSSH_9.2p1\r\n", ""},
      {Stranger::http("404 page not found\n", "404 Not Found"), "HTTP 404, '404 page not found"},
      {Stranger::http("<html>", "502 Bad Gateway"), "HTTP 502"},
      {Stranger::http("{}"), "'header' is missing"},
      {Stranger::http("", "301 Moved\r\nLocation: http://127.0.0.1:1/"), "HTTP 301"},
      {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", ""},
      {"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}", ""},
      {"", ""},
  };
  for (const auto& [answer, why] : answers) {
    const Stranger stranger([&](const Stranger::Visit& visit) { Stranger::say(visit, answer); });
    const Error error = asked_of(stranger, 20'000'000);
    EXPECT_EQ(error.status, VMEM_ERROR_TIMEOUT) << answer;
    EXPECT_THAT(error.message, HasSubstr("http://" + stranger.endpoint()));
    EXPECT_THAT(error.message, HasSubstr(why));
  }
}

TEST(EtcdStrangers, SilenceEndsAtTheLimit) {
  const Stranger stranger([](const Stranger::Visit& visit) {
    char byte = 0;
    while (Stranger::wait(visit.socket, visit.end) && ::recv(visit.socket, &byte, 1, 0) > 0) {
    }
  });
  EXPECT_EQ(asked_of(stranger, 300'000).status, VMEM_ERROR_TIMEOUT);
}

TEST(EtcdStrangers, ABodyWithoutAnEndIsCutOff) {
  const std::string piece(1 << 20, ' ');
  const Stranger stranger([&](const Stranger::Visit& visit) {
    Stranger::say(visit, "HTTP/1.1 200 OK\r\n\r\n");
    send_without_end(visit, piece);
  });
  const Error error = asked_of(stranger, 30'000'000);
  EXPECT_EQ(error.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(error.message, HasSubstr("the answer has more than 67108864 bytes"));
}

TEST(EtcdStrangers, HeadersWithoutAnEndAreCutOff) {
  const std::string piece = "X-A: " + std::string(1000, 'a') + "\r\n";
  const Stranger stranger([&](const Stranger::Visit& visit) {
    Stranger::say(visit, "HTTP/1.1 200 OK\r\n");
    send_without_end(visit, piece);
  });
  EXPECT_EQ(asked_of(stranger, 20'000'000).status, VMEM_ERROR_TIMEOUT);
}

TEST(EtcdStrangers, ACommitIsNotRepeatedOnABrokenConnection) {
  std::atomic<int> commits{0};
  // Answers the first request of each connection, keeps the connection, and closes it at the
  // second.
  const Stranger stranger([&](const Stranger::Visit& visit) {
    if (visit.request.contains("/v3/kv/txn")) {
      ++commits;
      return;
    }
    Stranger::say(visit, Stranger::http(R"({"header":{"revision":"5"}})"));
    char bytes[4096];
    if (!Stranger::wait(visit.socket, visit.end)) return;
    const ssize_t got = ::recv(visit.socket, bytes, sizeof(bytes), 0);
    if (got > 0 && std::string_view(bytes, static_cast<std::size_t>(got)).contains("/v3/kv/txn")) ++commits;
  });
  // The other side serves one connection at a time: the one that is kept has to end first.
  {
    EtcdClient client(fmt::format("etcd://{}/test", stranger.endpoint()), 20'000'000);
    EXPECT_TRUE(client.asker().keys().empty());
    const RequestId commit = client.registry().post(Commit{.conditions = {}, .edits = {put("a", "")}});
    const RequestId read = client.registry().post(ReadPrefix{""});
    EXPECT_TRUE(std::holds_alternative<Error>(client.asker().wait_for(commit).what));
    (void)read;
  }
  EXPECT_EQ(commits.load(), 1);
}

TEST(EtcdStrangers, TheNextEndpointIsUsed) {
  const Stranger stranger([](const Stranger::Visit& visit) { Stranger::say(visit, Stranger::http("garbage")); });
  const auto servers = start_etcd(1);
  EtcdClient client(fmt::format("etcd://{},{}/test", stranger.endpoint(), servers->endpoint(0)));
  EXPECT_TRUE(client.asker().keys().empty());
  EXPECT_TRUE(client.asker().commit({put("a", "")}));
  EXPECT_THAT(client.asker().keys(), ::testing::ElementsAre("a"));
  EXPECT_EQ(stranger.visits(), 1);
}

TEST(EtcdStrangers, ProxiesOfTheEnvironmentAreNotUsed) {
  const Stranger proxy([](const Stranger::Visit& visit) { Stranger::say(visit, Stranger::http("{}")); });
  const Stranger other(
      [](const Stranger::Visit& visit) { Stranger::say(visit, Stranger::http(R"({"header":{"revision":"5"}})")); });
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"})
    ::setenv(name, ("http://" + proxy.endpoint()).c_str(), 1);
  EtcdClient client(fmt::format("etcd://{}/test", other.endpoint()), 20'000'000);
  EXPECT_TRUE(client.asker().keys().empty());
  EXPECT_EQ(proxy.visits(), 0);
  for (const char* name : {"http_proxy", "all_proxy", "ALL_PROXY"}) ::unsetenv(name);
}

}  // namespace
}  // namespace vmem::cluster
