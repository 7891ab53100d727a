// Requirements on every Registry. An implementation instantiates the suite:
//   struct MyWorld { ... };
//   INSTANTIATE_TYPED_TEST_SUITE_P(My, RegistryConformance, MyWorld);
// A world is one registry without records. It has client(i), a Registry& for i = 0 and 1, and
// pass(), which lets a little time pass.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/registry/registry.hpp"
#include "cluster/registry/request_check.hpp"

namespace vmem::cluster {

inline Edit put(std::string key, std::string value, LeaseId lease = {}) {
  return {.key = std::move(key), .value = std::move(value), .lease = lease};
}
inline Edit erase(std::string key) { return {.key = std::move(key), .value = std::nullopt, .lease = {}}; }
inline Condition absent(std::string key) { return {.key = std::move(key), .modified = {}}; }

// Ends a failing test only.
inline constexpr std::chrono::seconds kPatience{60};

// Posts requests and waits for their replies.
template <class Pass>
class Asker {
 public:
  Asker(Registry& registry, Pass pass) : registry_(registry), pass_(pass) {}

  Reply wait_for(RequestId id) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    for (;;) {
      registry_.poll(replies_);
      for (auto each = replies_.begin(); each != replies_.end(); ++each) {
        if (each->request != id) continue;
        Reply found = std::move(*each);
        replies_.erase(each);
        return found;
      }
      if (std::chrono::steady_clock::now() > end) break;
      pass_();
    }
    ADD_FAILURE() << "request " << std::uint64_t(id) << " has no reply";
    return {};
  }
  Reply ask(RegistryRequest request) { return wait_for(registry_.post(std::move(request))); }
  // Fails the test if the reply is of another kind.
  template <class What>
  What get(RegistryRequest request) {
    Reply reply = ask(std::move(request));
    if (auto* what = std::get_if<What>(&reply.what)) return std::move(*what);
    const auto* error = std::get_if<Error>(&reply.what);
    ADD_FAILURE() << "another reply than expected: " << (error ? error->message : "no error");
    return {};
  }
  std::vector<Record> read(std::string prefix = "") { return get<Read>(ReadPrefix{std::move(prefix)}).records; }
  std::vector<std::string> keys(std::string prefix = "") {
    std::vector<std::string> keys;
    for (Record& each : read(std::move(prefix))) keys.push_back(std::move(each.key));
    return keys;
  }
  bool commit(std::vector<Edit> edits, std::vector<Condition> conditions = {}) {
    return get<Committed>(Commit{.conditions = std::move(conditions), .edits = std::move(edits)}).done;
  }
  LeaseId grant(std::uint32_t seconds = 1000) { return get<Granted>(GrantLease{seconds}).lease; }
  std::uint32_t renew(LeaseId lease) { return get<Renewed>(RenewLease{lease}).seconds; }
  vmem_status refused(RegistryRequest request) { return get<Error>(std::move(request)).status; }

 private:
  Registry& registry_;
  Pass pass_;
  std::vector<Reply> replies_;
};

template <class World>
class RegistryConformance : public ::testing::Test {
 protected:
  auto asker(int client) {
    return Asker(world.client(client), [this] { world.pass(); });
  }
  template <class Done>
  [[nodiscard]] bool until(Done done) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!done()) {
      if (std::chrono::steady_clock::now() > end) return false;
      world.pass();
    }
    return true;
  }

  World world;
};
TYPED_TEST_SUITE_P(RegistryConformance);

TYPED_TEST_P(RegistryConformance, ARegistryBeginsEmpty) {
  auto a = this->asker(0);
  const Reply reply = a.ask(ReadPrefix{""});
  ASSERT_TRUE(std::holds_alternative<Read>(reply.what));
  EXPECT_TRUE(std::get<Read>(reply.what).records.empty());
  EXPECT_GT(std::int64_t(reply.revision), 0);
}

TYPED_TEST_P(RegistryConformance, WhatOneClientPutsTheOtherReads) {
  auto a = this->asker(0), b = this->asker(1);
  const Reply reply = a.ask(Commit{.conditions = {}, .edits = {put("nodes/7", "seven")}});
  ASSERT_TRUE(std::holds_alternative<Committed>(reply.what));
  EXPECT_TRUE(std::get<Committed>(reply.what).done);
  const Record expected{.key = "nodes/7", .value = "seven", .modified = reply.revision, .lease = {}};
  EXPECT_EQ(b.read("nodes/"), std::vector{expected});
  EXPECT_EQ(a.read("nodes/7"), std::vector{expected});
}

TYPED_TEST_P(RegistryConformance, RevisionsGrowWithChangesOnly) {
  auto a = this->asker(0);
  const auto revision = [&](RegistryRequest request) { return std::int64_t(a.ask(std::move(request)).revision); };
  const std::int64_t first = revision(Commit{.conditions = {}, .edits = {put("a", "1"), put("b", "1")}});
  const std::int64_t second = revision(Commit{.conditions = {}, .edits = {put("a", "2")}});
  EXPECT_GT(second, first);
  EXPECT_EQ(revision(Commit{.conditions = {absent("a")}, .edits = {put("a", "3")}}), second);
  EXPECT_EQ(revision(Commit{.conditions = {}, .edits = {erase("none")}}), second);
  EXPECT_EQ(revision(ReadPrefix{"a"}), second);
  const auto records = a.read();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(std::int64_t(records[0].modified), second);
  EXPECT_EQ(std::int64_t(records[1].modified), first);
  EXPECT_GT(revision(Commit{.conditions = {}, .edits = {erase("a")}}), second);
}

TYPED_TEST_P(RegistryConformance, AConditionOfAbsenceHoldsOnce) {
  auto a = this->asker(0), b = this->asker(1);
  EXPECT_TRUE(a.commit({put("slices/3", "a")}, {absent("slices/3")}));
  EXPECT_FALSE(b.commit({put("slices/3", "b")}, {absent("slices/3")}));
  EXPECT_EQ(b.read().at(0).value, "a");
  EXPECT_TRUE(b.commit({erase("slices/3")}));
  EXPECT_TRUE(b.commit({put("slices/3", "b")}, {absent("slices/3")}));
}

TYPED_TEST_P(RegistryConformance, AConditionOfARevisionHoldsUntilTheNextChange) {
  auto a = this->asker(0), b = this->asker(1);
  ASSERT_TRUE(a.commit({put("counter", "1")}));
  const Condition seen{.key = "counter", .modified = a.read("counter").at(0).modified};
  EXPECT_TRUE(a.commit({put("other", "")}));
  EXPECT_TRUE(b.commit({put("counter", "2")}, {seen}));
  EXPECT_FALSE(a.commit({put("counter", "2")}, {seen}));
  EXPECT_FALSE(a.commit({put("new", "")}, {{.key = "none", .modified = seen.modified}}));
}

TYPED_TEST_P(RegistryConformance, ACommitMakesAllEditsOrNone) {
  auto a = this->asker(0);
  ASSERT_TRUE(a.commit({put("old", "1"), put("gone", "1")}));
  EXPECT_FALSE(a.commit({put("new", "2"), erase("gone")}, {absent("none"), absent("old")}));
  EXPECT_THAT(a.keys(), ::testing::ElementsAre("gone", "old"));
  EXPECT_TRUE(a.commit({put("new", "2"), erase("gone"), put("old", "2")}, {absent("none"), absent("new")}));
  EXPECT_THAT(a.keys(), ::testing::ElementsAre("new", "old"));
  const auto records = a.read();
  EXPECT_EQ(records[0].modified, records[1].modified);
}

TYPED_TEST_P(RegistryConformance, ACommitWithoutEditsChecksItsConditions) {
  auto a = this->asker(0), b = this->asker(1);
  ASSERT_TRUE(b.commit({put("a", "")}));
  EXPECT_TRUE(a.commit({}, {absent("b")}));
  EXPECT_FALSE(a.commit({}, {absent("a")}));
  EXPECT_TRUE(a.commit({}));
}

TYPED_TEST_P(RegistryConformance, OfCompetingCommitsOneIsDone) {
  std::vector<RequestId> posted[2];
  constexpr int kRounds = 10;
  for (int i = 0; i < kRounds; ++i) {
    const std::string key = fmt::format("race/{}", i);
    for (int client : {0, 1})
      posted[client].push_back(this->world.client(client).post(
          Commit{.conditions = {absent(key)}, .edits = {put(key, std::to_string(client))}}));
  }
  auto a = this->asker(0), b = this->asker(1);
  const auto done = [](const Reply& reply) {
    const auto* committed = std::get_if<Committed>(&reply.what);
    return committed != nullptr && committed->done;
  };
  for (std::size_t i = 0; i < kRounds; ++i) {
    const bool by_a = done(a.wait_for(posted[0][i])), by_b = done(b.wait_for(posted[1][i]));
    EXPECT_NE(by_a, by_b) << i;
  }
  EXPECT_EQ(a.keys("race/").size(), std::size_t{kRounds});
}

TYPED_TEST_P(RegistryConformance, APrefixSelectsTheKeysThatBeginWithIt) {
  auto a = this->asker(0);
  const std::string odd("odd\xff\xff\0\n\"\\/\xc3", 11);
  ASSERT_TRUE(a.commit({put("nodes/1", ""), put("nodes/10", ""), put("nodes/2", ""), put("nodes", ""),
                        put("nodesx", ""), put(odd, "odd"), put("odd\xff", "")}));
  EXPECT_THAT(a.keys("nodes/1"), ::testing::ElementsAre("nodes/1", "nodes/10"));
  EXPECT_THAT(a.keys("nodes/"), ::testing::ElementsAre("nodes/1", "nodes/10", "nodes/2"));
  EXPECT_THAT(a.keys("nodes"), ::testing::ElementsAre("nodes", "nodes/1", "nodes/10", "nodes/2", "nodesx"));
  EXPECT_THAT(a.keys("odd\xff\xff"), ::testing::ElementsAre(odd));
  EXPECT_THAT(a.keys("odd\xff"), ::testing::ElementsAre("odd\xff", odd));
  EXPECT_THAT(a.keys(odd), ::testing::ElementsAre(odd));
  EXPECT_THAT(a.keys("nodes/3"), ::testing::IsEmpty());
  EXPECT_EQ(a.keys().size(), 7u);
}

TYPED_TEST_P(RegistryConformance, AnyBytesAreAValue) {
  auto a = this->asker(0);
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  std::string large;
  while (large.size() < 100 * 1024) large += all;
  ASSERT_TRUE(a.commit({put("all", all), put("empty", ""), put("large", large), put("one", std::string(1, '\0'))}));
  const auto records = a.read();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].value, all);
  EXPECT_EQ(records[1].value, "");
  EXPECT_TRUE(records[2].value == large);
  EXPECT_EQ(records[3].value, std::string(1, '\0'));
}

TYPED_TEST_P(RegistryConformance, ThousandsOfRecordsAreOneRead) {
  auto a = this->asker(0);
  constexpr int kCommits = 20, kEach = 120;
  const std::string value(2048, 'v');
  for (int i = 0; i < kCommits; ++i) {
    Commit commit;
    for (int k = 0; k < kEach; ++k) commit.edits.push_back(put(fmt::format("r/{}", i * kEach + k), value));
    ASSERT_TRUE(a.template get<Committed>(std::move(commit)).done);
  }
  const auto records = a.read("r/");
  EXPECT_EQ(records.size(), std::size_t{kCommits * kEach});
  for (const Record& each : records) ASSERT_TRUE(each.value == value) << each.key;
}

TYPED_TEST_P(RegistryConformance, EachRequestHasOneReply) {
  Registry& registry = this->world.client(0);
  std::set<RequestId> posted, answered;
  for (int i = 0; i < 10; ++i) {
    posted.insert(registry.post(ReadPrefix{""}));
    posted.insert(registry.post(Commit{.conditions = {}, .edits = {put("a", std::to_string(i))}}));
    posted.insert(registry.post(GrantLease{1000}));
    posted.insert(registry.post(GrantLease{0}));
    posted.insert(registry.post(RenewLease{LeaseId{12345}}));
    posted.insert(registry.post(EndLease{LeaseId{12345}}));
  }
  EXPECT_EQ(posted.size(), 60u);
  EXPECT_TRUE(this->until([&] {
    std::vector<Reply> replies;
    registry.poll(replies);
    for (const Reply& each : replies) EXPECT_TRUE(answered.insert(each.request).second);
    return answered.size() >= posted.size();
  }));
  EXPECT_EQ(answered, posted);
}

TYPED_TEST_P(RegistryConformance, TheEndOfALeaseErasesItsRecords) {
  auto a = this->asker(0), b = this->asker(1);
  const LeaseId lease = a.grant(), other = a.grant();
  EXPECT_NE(lease, other);
  ASSERT_TRUE(a.commit({put("1", "", lease), put("2", "", lease), put("3", "", other), put("4", "")}));
  EXPECT_EQ(b.read("1").at(0).lease, lease);
  const auto before = std::int64_t(a.ask(ReadPrefix{""}).revision);
  (void)b.template get<Ended>(EndLease{lease});
  EXPECT_THAT(a.keys(), ::testing::ElementsAre("3", "4"));
  EXPECT_GT(std::int64_t(a.ask(ReadPrefix{""}).revision), before);
}

TYPED_TEST_P(RegistryConformance, ALeaseThatIsNotRenewedEnds) {
  auto a = this->asker(0);
  const Granted granted = a.template get<Granted>(GrantLease{1});
  EXPECT_GE(granted.seconds, 1u);
  EXPECT_LE(granted.seconds, 5u);
  // On a machine that stood still, the lease may have ended before the commit.
  (void)a.ask(Commit{.conditions = {}, .edits = {put("mine", "", granted.lease)}});
  ASSERT_TRUE(a.commit({put("stays", "")}));
  EXPECT_TRUE(this->until([&] { return a.keys() == std::vector<std::string>{"stays"}; }));
  EXPECT_EQ(a.renew(granted.lease), 0u);
}

TYPED_TEST_P(RegistryConformance, ARenewalSaysHowLongTheLeaseLasts) {
  auto a = this->asker(0);
  const Granted granted = a.template get<Granted>(GrantLease{1000});
  const Reply reply = a.ask(RenewLease{granted.lease});
  ASSERT_TRUE(std::holds_alternative<Renewed>(reply.what));
  EXPECT_EQ(std::get<Renewed>(reply.what).seconds, granted.seconds);
  EXPECT_GT(std::int64_t(reply.revision), 0);
}

TYPED_TEST_P(RegistryConformance, AnEndedLeaseStaysEnded) {
  auto a = this->asker(0);
  const LeaseId lease = a.grant();
  (void)a.template get<Ended>(EndLease{lease});
  (void)a.template get<Ended>(EndLease{lease});
  EXPECT_EQ(a.renew(lease), 0u);
  EXPECT_EQ(a.renew(LeaseId{4711}), 0u);
  EXPECT_EQ(a.refused(Commit{.conditions = {}, .edits = {put("good", ""), put("mine", "", lease)}}),
            VMEM_ERROR_INVALID_VALUE);
  EXPECT_TRUE(a.keys().empty());
}

TYPED_TEST_P(RegistryConformance, ARecordPutAgainLeavesItsLease) {
  auto a = this->asker(0);
  const LeaseId first = a.grant(), second = a.grant();
  ASSERT_TRUE(a.commit({put("1", "", first), put("2", "", first)}));
  ASSERT_TRUE(a.commit({put("1", ""), put("2", "", second)}));
  (void)a.template get<Ended>(EndLease{first});
  EXPECT_THAT(a.keys(), ::testing::ElementsAre("1", "2"));
  (void)a.template get<Ended>(EndLease{second});
  EXPECT_THAT(a.keys(), ::testing::ElementsAre("1"));
}

TYPED_TEST_P(RegistryConformance, RequestsBeyondTheLimitsAreRefused) {
  auto a = this->asker(0);
  Commit edits, conditions, bytes;
  for (std::size_t i = 0; i < kMostEdits; ++i) {
    edits.edits.push_back(put(std::to_string(i), ""));
    conditions.conditions.push_back(absent(fmt::format("c{}", i)));
  }
  bytes.edits.push_back(put("a", std::string(kMostCommitBytes - 1, 'a')));
  for (const Commit& each : {edits, conditions, bytes}) EXPECT_TRUE(a.template get<Committed>(each).done);
  edits.edits.push_back(put("more", ""));
  conditions.conditions.push_back(absent("more"));
  bytes.edits.push_back(put("b", ""));
  for (const Commit& each : {edits, conditions, bytes, Commit{.conditions = {}, .edits = {put("x", ""), erase("x")}}})
    EXPECT_EQ(a.refused(each), VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(a.refused(GrantLease{0}), VMEM_ERROR_INVALID_VALUE);
  EXPECT_TRUE(a.keys("x").empty());
}

// Some programs only use the helpers.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RegistryConformance);
REGISTER_TYPED_TEST_SUITE_P(RegistryConformance, ARegistryBeginsEmpty, WhatOneClientPutsTheOtherReads,
                            RevisionsGrowWithChangesOnly, AConditionOfAbsenceHoldsOnce,
                            AConditionOfARevisionHoldsUntilTheNextChange, ACommitMakesAllEditsOrNone,
                            ACommitWithoutEditsChecksItsConditions, OfCompetingCommitsOneIsDone,
                            APrefixSelectsTheKeysThatBeginWithIt, AnyBytesAreAValue, ThousandsOfRecordsAreOneRead,
                            EachRequestHasOneReply, TheEndOfALeaseErasesItsRecords, ALeaseThatIsNotRenewedEnds,
                            ARenewalSaysHowLongTheLeaseLasts, AnEndedLeaseStaysEnded, ARecordPutAgainLeavesItsLease,
                            RequestsBeyondTheLimitsAreRefused);

}  // namespace vmem::cluster
