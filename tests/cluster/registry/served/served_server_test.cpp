#include <fmt/format.h>

#include "cluster/enrollment/serial_counter.hpp"
#include "cluster/registry/registry_conformance.hpp"
#include "cluster/registry/served/record_codec.hpp"
#include "cluster/registry/served/served_world.hpp"

namespace vmem::cluster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServedServerTest : public ::testing::Test {
 protected:
  struct Client {
    Client(ServedDaemon& daemon, std::uint64_t number, const std::string& identity = "key-1",
           const std::string& cluster = "test")
        : channel(daemon, identity),
          registry(served_client(daemon.clock, channel, number, 8 * kSecondUs, cluster)),
          asking(*registry, std::function<void()>([&daemon] { daemon.clock.advance(kSecondUs / 10); })) {}
    GoodChannel channel;
    std::unique_ptr<ServedRegistry> registry;
    Asker<std::function<void()>> asking;
  };

  Error error(Client& client, RegistryRequest request) { return client.asking.get<Error>(std::move(request)); }
  // Carried out, and its answer is lost with the server.
  RequestId post_and_restart(Client& client, RegistryRequest request) {
    const RequestId id = client.registry->post(std::move(request));
    std::vector<std::string> lost;
    client.channel.receive(lost);
    EXPECT_FALSE(lost.empty());
    daemon.start();
    return id;
  }

  ServedDaemon daemon;
  MemoryStore store;
};

TEST_F(ServedServerTest, IdentitiesAndClustersHaveRecordsOfTheirOwn) {
  daemon.start();
  Client one(daemon, 1), other_cluster(daemon, 1, "key-1", "other"), other_key(daemon, 1, "key-2");
  ASSERT_TRUE(one.asking.commit({put("a", "1")}));
  EXPECT_THAT(other_cluster.asking.keys(), IsEmpty());
  EXPECT_THAT(other_key.asking.keys(), IsEmpty());
  EXPECT_TRUE(other_key.asking.commit({put("a", "2")}, {absent("a")}));
  EXPECT_EQ(one.asking.read("a").at(0).value, "1");
}

TEST_F(ServedServerTest, ASessionOfAnotherIdentityIsNone) {
  daemon.start();
  using namespace served;
  const auto ask = [&](const std::string& identity, decltype(Question::what) what) {
    return *decode_answer(daemon.server->answer(
        identity, encode(Question{.client = 1, .number = 1, .cluster = "test", .what = std::move(what)})));
  };
  const Answer opened = ask("key-1", Open{});
  const std::string bytes = encode_write(Commit{.conditions = {}, .edits = {put("a", "1")}});
  const WritePiece piece{.session = {opened.incarnation, std::get<Opened>(opened.what).session},
                         .order = 1,
                         .total = static_cast<std::uint32_t>(bytes.size()),
                         .offset = 0,
                         .bytes = bytes};
  EXPECT_TRUE(std::holds_alternative<NoSession>(ask("key-2", piece).what));
  EXPECT_TRUE(std::holds_alternative<Outcome>(ask("key-1", piece).what));
}

TEST_F(ServedServerTest, WhatIsNoQuestionHasNoAnswer) {
  daemon.start();
  for (const std::string& each : {std::string(), std::string("x"), std::string(100, '\0'), std::string(100'000, 'x')})
    EXPECT_EQ(daemon.server->answer("key-1", each), "");
}

TEST_F(ServedServerTest, AnotherVersionIsNamed) {
  daemon.start();
  std::string question =
      served::encode(served::Question{.client = 7, .number = 9, .cluster = "test", .what = served::Open{}});
  question[4] = 2;
  const auto answer = served::decode_answer(daemon.server->answer("key-1", question));
  ASSERT_TRUE(answer && std::holds_alternative<served::Declined>(answer->what));
  const Error& why = std::get<served::Declined>(answer->what).why;
  EXPECT_EQ(why.status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_THAT(why.message, HasSubstr("version 2"));
  EXPECT_EQ(answer->client, 7u);
  EXPECT_EQ(answer->number, 9u);
}

// ---- bounds ----

TEST_F(ServedServerTest, RecordsAndBytesAreBounded) {
  daemon.limits.each.records = 3;
  daemon.limits.each.bytes = 100;
  daemon.start();
  Client client(daemon, 1);
  ASSERT_TRUE(client.asking.commit({put("a", ""), put("b", ""), put("c", "")}));
  EXPECT_THAT(error(client, Commit{.conditions = {}, .edits = {put("d", "")}}).message,
              HasSubstr("4 records of 4 bytes: this registry holds at most 3 of 100 bytes"));
  EXPECT_TRUE(client.asking.commit({put("d", ""), erase("a")}));
  EXPECT_EQ(client.asking.refused(Commit{.conditions = {}, .edits = {put("b", std::string(98, 'x'))}}),
            VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_TRUE(client.asking.commit({put("b", std::string(97, 'x'))}));
  EXPECT_TRUE(client.asking.commit({put("b", "")}));
  EXPECT_TRUE(client.asking.commit({put("c", std::string(97, 'x'))}));
  EXPECT_THAT(client.asking.keys(), ElementsAre("b", "c", "d"));
}

TEST_F(ServedServerTest, TheEndOfALeaseMakesRoom) {
  daemon.limits.each.bytes = 100;
  daemon.limits.each.leases = 2;
  daemon.start();
  Client client(daemon, 1);
  const LeaseId lease = client.asking.grant(), other = client.asking.grant();
  EXPECT_THAT(error(client, GrantLease{5}).message, HasSubstr("no lease is left of 2"));
  ASSERT_TRUE(client.asking.commit({put("a", std::string(99, 'x'), lease)}));
  (void)client.asking.get<Ended>(EndLease{lease});
  EXPECT_NE(client.asking.grant(), other);
  EXPECT_TRUE(client.asking.commit({put("b", std::string(99, 'x'))}));
}

TEST_F(ServedServerTest, ALeaseIsAtMostAsLongAsARestartWaits) {
  daemon.start();
  Client client(daemon, 1);
  EXPECT_THAT(error(client, GrantLease{1001}).message,
              HasSubstr("a lease of 1001 s: this registry grants at most 1000"));
}

TEST_F(ServedServerTest, ClustersAreBounded) {
  daemon.limits.namespaces = 3;
  daemon.limits.of_identity = 2;
  daemon.start();
  const auto commit = [&](const std::string& identity, const std::string& cluster) {
    Client client(daemon, 1, identity, cluster);
    EXPECT_THAT(client.asking.keys(), IsEmpty());
    return client.asking.ask(Commit{.conditions = {}, .edits = {put("a", "")}});
  };
  const auto refused = [](const Reply& reply) {
    const auto* const error = std::get_if<Error>(&reply.what);
    return error != nullptr && error->status == VMEM_ERROR_OUT_OF_MEMORY && error->message.contains("of this identity");
  };
  EXPECT_FALSE(refused(commit("key-1", "a")));
  EXPECT_FALSE(refused(commit("key-1", "b")));
  EXPECT_TRUE(refused(commit("key-1", "c")));
  EXPECT_FALSE(refused(commit("key-2", "a")));
  EXPECT_TRUE(refused(commit("key-3", "a")));
  EXPECT_EQ(daemon.server->namespaces(), 3u);
}

TEST_F(ServedServerTest, ClientsAreBoundedAndIdleOnesDisplaced) {
  daemon.limits.sessions.sessions = 3;
  daemon.limits.sessions.of_identity = 2;
  daemon.start();
  Client one(daemon, 1), two(daemon, 2), three(daemon, 3);
  ASSERT_TRUE(one.asking.commit({put("a", "1")}));
  ASSERT_TRUE(two.asking.commit({put("a", "2")}));
  const Error full = error(three, Commit{.conditions = {}, .edits = {put("a", "3")}});
  EXPECT_EQ(full.status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(full.message, HasSubstr("2 clients"));
  daemon.clock.advance(daemon.limits.sessions.idle_us - kSecondUs);
  ASSERT_TRUE(two.asking.commit({put("a", "4")}));
  daemon.clock.advance(kSecondUs);
  ASSERT_TRUE(three.asking.commit({put("a", "5")}));
  // Its session is lost: the outcome of one write is unknown, and then it has another one.
  daemon.clock.advance(daemon.limits.sessions.idle_us);
  EXPECT_EQ(error(one, Commit{.conditions = {}, .edits = {put("a", "6")}}).status, VMEM_ERROR_TIMEOUT);
  EXPECT_TRUE(one.asking.commit({put("a", "7")}));
}

TEST_F(ServedServerTest, IncompleteWritesAreBounded) {
  using namespace served;
  SessionLimits limits{.upload_bytes = 250, .identity_upload_bytes = 150};
  Sessions sessions(Incarnation{1}, limits);
  const auto session = [&](const std::string& identity, std::uint64_t client) {
    const Place place{.identity = identity, .cluster = "c"};
    return sessions.find(place, {Incarnation{1}, *sessions.open(place, client, 0)}, client);
  };
  const auto add = [&](Session* to, std::uint32_t offset, std::size_t bytes) {
    return sessions.add(*to, {.order = 1, .total = 1000, .offset = offset, .bytes = std::string(bytes, 'x')});
  };
  Session *const a = session("1", 1), *const b = session("1", 2), *const c = session("2", 3);
  EXPECT_EQ(add(a, 0, 100), 100u);
  EXPECT_EQ(add(b, 0, 100), 100u);  // displaces a's
  EXPECT_EQ(add(a, 100, 10), 0u);
  EXPECT_EQ(add(c, 0, 140), 140u);
  EXPECT_EQ(add(b, 100, 60), 100u);  // beyond what an identity may have, and nothing to displace
  EXPECT_EQ(add(b, 100, 40), 140u);  // beyond what all may have: displaces c's
  EXPECT_EQ(add(c, 140, 10), 0u);
}

TEST_F(ServedServerTest, LargeReadingsAreBounded) {
  served::ReadPages pages(100);
  const served::Place place{.identity = "1", .cluster = "c"};
  for (std::int64_t i = 1; i <= 5; ++i)
    (void)pages.keep({.place = place, .prefix = "p", .revision = Revision{i}, .bytes = std::string(40, 'x')});
  EXPECT_LE(pages.bytes(), 100u);
  EXPECT_EQ(pages.find(place, "p", Revision{3}), nullptr);
  EXPECT_NE(pages.find(place, "p", Revision{5}), nullptr);
  EXPECT_EQ(pages.find(place, "q", Revision{5}), nullptr);
  EXPECT_EQ(pages.find({.identity = "2", .cluster = "c"}, "p", Revision{5}), nullptr);
  EXPECT_EQ(
      pages.keep({.place = place, .prefix = "q", .revision = Revision{1}, .bytes = std::string(500, 'x')}).bytes.size(),
      500u);
}

// ---- readings in pieces ----

// Changes a record between any two pages. `kept` bytes: of readings that the server keeps
void read_under_changes(ServedDaemon& daemon, GoodChannel& channel, ServedRegistry& reader, int changes) {
  const RequestId id = reader.post(ReadPrefix{"big"});
  std::vector<Reply> replies;
  GoodChannel to_writer(daemon);
  const auto writer = served_client(daemon.clock, to_writer, 2);
  for (int i = 0; i < 100 && replies.empty(); ++i) {
    if (i < changes) (void)writer->post(Commit{.conditions = {}, .edits = {put("big/a", fmt::format("{}", i))}});
    std::vector<Reply> written;
    while (i < changes && written.empty()) writer->poll(written);
    reader.poll(replies);
  }
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].request, id);
  ASSERT_TRUE(std::holds_alternative<Read>(replies[0].what));
  const auto& records = std::get<Read>(replies[0].what).records;
  ASSERT_EQ(records.size(), 4u);
  for (const Record& each : records) EXPECT_LE(each.modified, replies[0].revision);
  EXPECT_GT(channel.sent, 10u);
}

TEST_F(ServedServerTest, AReadingIsOfOneRevisionWhileRecordsChange) {
  daemon.start();
  Client client(daemon, 1);
  for (const char* key : {"big/a", "big/b", "big/c", "big/d"})
    ASSERT_TRUE(client.asking.commit({put(key, std::string(200'000, 'x'))}));
  const Revision before = client.asking.ask(ReadPrefix{"none"}).revision;
  read_under_changes(daemon, client.channel, *client.registry, 100);
  EXPECT_GT(client.asking.ask(ReadPrefix{"none"}).revision, before);
}

TEST_F(ServedServerTest, AReadingThatIsNotKeptBeginsAnew) {
  daemon.limits.reading_bytes = 1;
  daemon.start();
  Client client(daemon, 1), other(daemon, 3);
  for (const char* key : {"big/a", "big/b", "big/c", "big/d"})
    ASSERT_TRUE(client.asking.commit({put(key, std::string(200'000, 'x'))}));
  const RequestId id = client.registry->post(ReadPrefix{"big"});
  std::vector<Reply> replies;
  for (int i = 0; i < 5; ++i) client.registry->poll(replies);
  ASSERT_TRUE(replies.empty());
  ASSERT_TRUE(other.asking.commit({put("big/c", "new")}));
  EXPECT_THAT(other.asking.keys("none"), IsEmpty());
  const Reply reply = client.asking.wait_for(id);
  ASSERT_TRUE(std::holds_alternative<Read>(reply.what));
  EXPECT_EQ(std::get<Read>(reply.what).records.at(2).value, "new");
}

// ---- restarts ----

TEST_F(ServedServerTest, WhatWasAcknowledgedOutlivesARestart) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1);
  const LeaseId lease = client.asking.grant(100);
  ASSERT_TRUE(client.asking.commit({put("a", "1"), put("mine", "2", lease)}));
  const std::vector<Record> before = client.asking.read();
  const Revision revision = client.asking.ask(ReadPrefix{""}).revision;
  const std::uint64_t incarnation = client.registry->incarnation();
  daemon.clock.advance(99 * kSecondUs);
  daemon.start(RegistryServer::Before::perhaps_a_server);
  EXPECT_EQ(client.asking.read(), before);
  EXPECT_EQ(client.asking.ask(ReadPrefix{""}).revision, revision);
  EXPECT_GT(client.registry->incarnation(), incarnation);
  EXPECT_GT(client.asking.grant(), lease);
  // The lease runs its full time again.
  daemon.clock.advance(99 * kSecondUs);
  EXPECT_THAT(client.asking.keys(), ElementsAre("a", "mine"));
  daemon.clock.advance(kSecondUs);
  EXPECT_THAT(client.asking.keys(), ElementsAre("a"));
  EXPECT_EQ(client.asking.renew(lease), 0u);
}

TEST_F(ServedServerTest, TheEndOfALeaseThatWasShownOutlivesARestart) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1);
  const LeaseId lease = client.asking.grant(100);
  ASSERT_TRUE(client.asking.commit({put("mine", "", lease)}));
  daemon.clock.advance(100 * kSecondUs);
  EXPECT_THAT(client.asking.keys(), IsEmpty());
  daemon.start();
  EXPECT_THAT(client.asking.keys(), IsEmpty());
}

TEST_F(ServedServerTest, StepEndsLeasesAndWritesIt) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1);
  EXPECT_EQ(daemon.server->next_due_us(), UINT64_MAX);
  const std::uint64_t granted_us = daemon.clock.now_us();
  ASSERT_TRUE(client.asking.commit({put("mine", "", client.asking.grant(100))}));
  EXPECT_EQ(daemon.server->next_due_us(), granted_us + 100 * kSecondUs);
  daemon.clock.advance(100 * kSecondUs);
  store.fails = true;
  daemon.server->step();
  EXPECT_GT(daemon.server->next_due_us(), daemon.clock.now_us());
  EXPECT_LT(daemon.server->next_due_us(), daemon.clock.now_us() + 10 * kSecondUs);
  store.fails = false;
  daemon.clock.advance(daemon.server->next_due_us() - daemon.clock.now_us());
  daemon.server->step();
  EXPECT_EQ(daemon.server->next_due_us(), UINT64_MAX);
  daemon.start();
  EXPECT_THAT(client.asking.keys(), IsEmpty());
}

TEST_F(ServedServerTest, AWriteWhoseAnswerARestartTookIsNotRepeated) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1), other(daemon, 2);
  ASSERT_TRUE(client.asking.commit({put("a", "first")}));
  const RequestId id = post_and_restart(client, Commit{.conditions = {}, .edits = {put("a", "second")}});
  ASSERT_TRUE(other.asking.commit({put("a", "third")}));
  const Reply reply = client.asking.wait_for(id);
  ASSERT_TRUE(std::holds_alternative<Error>(reply.what));
  EXPECT_EQ(std::get<Error>(reply.what).status, VMEM_ERROR_TIMEOUT);
  EXPECT_EQ(other.asking.read("a").at(0).value, "third");
  EXPECT_TRUE(client.asking.commit({put("a", "fourth")}));
}

TEST_F(ServedServerTest, WithoutAStoreARestartIsAnotherRegistry) {
  daemon.limits.each.lease_seconds = 90;
  daemon.first_records = [](std::uint64_t number) { return std::vector{first_counter(number)}; };
  daemon.start();
  Client client(daemon, 1);
  const std::vector<Record> first = client.asking.read();
  ASSERT_EQ(first.size(), 1u);
  const LeaseId lease = client.asking.grant(90);
  ASSERT_TRUE(client.asking.commit({put("a", "", lease)}));
  const Revision revision = client.asking.ask(ReadPrefix{""}).revision;
  const std::uint64_t incarnation = client.registry->incarnation();
  daemon.clock.advance(kSecondUs);
  daemon.start(RegistryServer::Before::perhaps_a_server);
  const std::uint64_t started_us = daemon.clock.now_us();
  EXPECT_EQ(client.asking.renew(lease), 0u);
  EXPECT_GT(client.registry->incarnation(), incarnation);
  EXPECT_GT(client.asking.ask(ReadPrefix{""}).revision, revision);
  const std::vector<Record> now = client.asking.read();
  ASSERT_EQ(now.size(), 1u);
  EXPECT_EQ(now[0].key, kSerialKey);
  EXPECT_GT(std::stoull(now[0].value), std::stoull(first[0].value) + 255 * kSecondUs);
  // Leases wait until those of before have ended.
  EXPECT_THAT(error(client, GrantLease{90}).message, HasSubstr("grants no lease for another 9"));
  daemon.clock.advance(started_us + 90 * kSecondUs - 1 - daemon.clock.now_us());
  EXPECT_EQ(client.asking.refused(GrantLease{90}), VMEM_ERROR_UNSUPPORTED);
  daemon.clock.advance(1);
  EXPECT_GT(client.asking.grant(90), lease);
}

TEST_F(ServedServerTest, AClockThatWasSetBackIsNamed) {
  daemon.start();
  Client client(daemon, 1);
  (void)client.asking.read();
  auto back = RegistryServer::create(daemon.clock, {.started_us = 5, .before = RegistryServer::Before::nothing});
  ASSERT_TRUE(back);
  daemon.server = *std::move(back);
  const Error why = error(client, ReadPrefix{""});
  EXPECT_EQ(why.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(why.message, HasSubstr("clock"));
}

TEST_F(ServedServerTest, WithAStoreAClockThatWasSetBackDoesNoHarm) {
  daemon.store = &store;
  daemon.start();
  const std::uint64_t before = daemon.server->incarnation();
  auto back = RegistryServer::create(daemon.clock, {.store = &store, .started_us = 5});
  ASSERT_TRUE(back);
  EXPECT_EQ((*back)->incarnation(), before + 1);
}

TEST_F(ServedServerTest, ATimeOfStartThatCannotBeIsRefused) {
  for (const std::uint64_t each : {std::uint64_t{0}, UINT64_MAX}) {
    const auto created = RegistryServer::create(daemon.clock, {.started_us = each});
    ASSERT_FALSE(created);
    EXPECT_EQ(created.error().status, VMEM_ERROR_INVALID_OPTION);
  }
}

// ---- the store ----

TEST_F(ServedServerTest, NothingIsAcknowledgedBeforeItIsWritten) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1);
  ASSERT_TRUE(client.asking.commit({put("a", "1")}));
  store.fails = true;
  const Error why = error(client, Commit{.conditions = {}, .edits = {put("a", "2")}});
  EXPECT_EQ(why.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(why.message, HasSubstr("the disk is full"));
  EXPECT_EQ(error(client, ReadPrefix{""}).status, VMEM_ERROR_TIMEOUT);
  daemon.server.reset();
  store.fails = false;
  daemon.start();
  EXPECT_EQ(client.asking.read("a").at(0).value, "1");
}

TEST_F(ServedServerTest, AWriteIsAcknowledgedOnceTheStoreWorksAgain) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1);
  ASSERT_TRUE(client.asking.commit({put("a", "1")}));
  store.fails = true;
  const RequestId id = client.registry->post(Commit{.conditions = {}, .edits = {put("a", "2")}});
  std::vector<Reply> replies;
  client.registry->poll(replies);
  EXPECT_THAT(replies, IsEmpty());
  store.fails = false;
  const Reply reply = client.asking.wait_for(id);
  EXPECT_TRUE(std::holds_alternative<Committed>(reply.what));
  daemon.start();
  EXPECT_EQ(client.asking.read("a").at(0).value, "2");
}

TEST_F(ServedServerTest, ReadingsAndRenewalsWriteNothing) {
  daemon.store = &store;
  daemon.start();
  Client client(daemon, 1);
  const LeaseId lease = client.asking.grant();
  const std::uint64_t writes = store.writes;
  (void)client.asking.read();
  EXPECT_GT(client.asking.renew(lease), 0u);
  EXPECT_FALSE(client.asking.commit({put("a", "")}, {{.key = "a", .modified = Revision{1}}}));
  EXPECT_EQ(store.writes, writes);
}

TEST_F(ServedServerTest, AStoreThatCannotBeWrittenEndsTheStart) {
  store.fails = true;
  const auto created = RegistryServer::create(daemon.clock, {.store = &store, .started_us = 5});
  ASSERT_FALSE(created);
  EXPECT_THAT(created.error().message, HasSubstr("the disk is full"));
}

// ---- the client ----

TEST_F(ServedServerTest, WithoutAServerOnlyWhatWasSentMayHaveBeenCarriedOut) {
  Client client(daemon, 1);
  EXPECT_EQ(error(client, ReadPrefix{""}).status, VMEM_ERROR_TIMEOUT);
  const Error unsent = error(client, Commit{.conditions = {}, .edits = {put("a", "")}});
  EXPECT_EQ(unsent.status, VMEM_ERROR_UNSUPPORTED);
  EXPECT_THAT(unsent.message, HasSubstr("cluster 'test': committing 1 edits of 'a': not sent within 8s"));
  daemon.start();
  ASSERT_TRUE(client.asking.commit({put("a", "")}));
  daemon.server.reset();
  EXPECT_EQ(error(client, Commit{.conditions = {}, .edits = {put("a", "")}}).status, VMEM_ERROR_TIMEOUT);
}

TEST_F(ServedServerTest, ItIsDueForRepetitionsAndDeadlinesOnly) {
  Client client(daemon, 1);
  EXPECT_EQ(client.registry->next_due_us(), UINT64_MAX);
  const std::uint64_t posted_us = daemon.clock.now_us();
  (void)client.registry->post(ReadPrefix{""});
  EXPECT_EQ(client.channel.sent, 1u);
  std::uint64_t wait_us = 250'000, due_us = posted_us;
  std::vector<Reply> replies;
  for (std::uint64_t sent = 2; due_us + wait_us < posted_us + 8 * kSecondUs; ++sent) {
    due_us += wait_us;
    wait_us = std::min<std::uint64_t>(2 * wait_us, 2 * kSecondUs);
    ASSERT_EQ(client.registry->next_due_us(), due_us);
    daemon.clock.advance(due_us - daemon.clock.now_us());
    client.registry->poll(replies);
    ASSERT_EQ(client.channel.sent, sent);
  }
  EXPECT_THAT(replies, IsEmpty());
  EXPECT_EQ(client.registry->next_due_us(), posted_us + 8 * kSecondUs);
  daemon.clock.advance(posted_us + 8 * kSecondUs - daemon.clock.now_us());
  client.registry->poll(replies);
  EXPECT_EQ(replies.size(), 1u);
  EXPECT_EQ(client.registry->next_due_us(), UINT64_MAX);
}

TEST_F(ServedServerTest, AWrongNameOfAClusterAndALongPrefixAreRefused) {
  GoodChannel channel(daemon);
  EXPECT_EQ(ServedRegistry::create(daemon.clock, channel, {.cluster = "a/b", .client = 1}).error().status,
            VMEM_ERROR_INVALID_OPTION);
  Client client(daemon, 1);
  EXPECT_EQ(client.asking.refused(ReadPrefix{std::string(served::kMostPrefixBytes + 1, 'p')}),
            VMEM_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace vmem::cluster
