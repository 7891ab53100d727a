#include "rdma/lending/memory_service/reply_cache.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

#include "rdma/transport/test_node.hpp"

namespace vmem::rdma {
namespace {

using Verdict = ReplyCache::Verdict;

wire::RequestId request(std::uint64_t client, std::uint64_t epoch, std::uint64_t sequence) {
  return {client, Epoch{epoch}, sequence};
}
std::vector<std::byte> reply(std::string_view text) { return {bytes_of(text).begin(), bytes_of(text).end()}; }

TEST(ReplyCache, ADuplicateGetsTheSameReplyAndIsNotCarriedOutAgain) {
  ReplyCache cache;
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::carry_out);
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::under_way);
  EXPECT_TRUE(cache.reply(request(1, 1, 1)).empty());
  cache.answered(request(1, 1, 1), reply("done"));
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::answered);
  EXPECT_EQ(text_of(cache.reply(request(1, 1, 1))), "done");
}

TEST(ReplyCache, ClientsAndSequencesAreApart) {
  ReplyCache cache;
  EXPECT_EQ(cache.arrived(request(1, 1, 5)), Verdict::carry_out);
  EXPECT_EQ(cache.arrived(request(2, 1, 5)), Verdict::carry_out);
  EXPECT_EQ(cache.arrived(request(1, 1, 4)), Verdict::carry_out) << "requests may overtake each other";
}

TEST(ReplyCache, AnEarlierEpochIsStaleAndALaterOneStartsOver) {
  ReplyCache cache;
  cache.arrived(request(1, 5, 1));
  EXPECT_EQ(cache.arrived(request(1, 4, 2)), Verdict::stale);
  EXPECT_EQ(cache.arrived(request(1, 6, 1)), Verdict::carry_out);
  EXPECT_EQ(cache.arrived(request(1, 5, 1)), Verdict::stale);
  cache.answered(request(1, 5, 1), reply("late"));
  EXPECT_EQ(cache.arrived(request(1, 6, 1)), Verdict::under_way) << "the earlier epoch's answer is not this one's";
}

TEST(ReplyCache, WhatIsOlderThanTheWindowIsStale) {
  ReplyCache cache(4);
  for (std::uint64_t i = 1; i <= 5; ++i) {
    EXPECT_EQ(cache.arrived(request(1, 1, i)), Verdict::carry_out);
    cache.answered(request(1, 1, i), reply(std::to_string(i)));
  }
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::stale);
  EXPECT_TRUE(cache.reply(request(1, 1, 1)).empty());
  EXPECT_EQ(cache.arrived(request(1, 1, 2)), Verdict::answered);
}

TEST(ReplyCache, AnAbandonedRequestIsNewWhenItComesAgain) {
  ReplyCache cache;
  cache.arrived(request(1, 1, 1));
  cache.abandoned(request(1, 1, 1));
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::carry_out);
  cache.answered(request(1, 1, 1), reply("done"));
  cache.abandoned(request(1, 1, 1));
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::answered) << "what was answered stays so";
}

TEST(ReplyCache, AForgottenClientStartsOver) {
  ReplyCache cache;
  cache.arrived(request(1, 9, 1));
  cache.forget(1);
  EXPECT_EQ(cache.arrived(request(1, 1, 1)), Verdict::carry_out);
}

// Requests and answers in any order, repeated and delayed: each request is executed at most once
// during its epoch.
TEST(ReplyCache, NoRequestIsCarriedOutTwiceWhateverTheOrder) {
  std::mt19937_64 random(3);
  ReplyCache cache(8);
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> carried_out, open;
  std::map<std::uint64_t, std::uint64_t> epoch;
  for (int step = 0; step < 200'000; ++step) {
    const std::uint64_t client = random() % 3;
    if (random() % 500 == 0) ++epoch[client];
    const std::uint64_t of = epoch[client] - (epoch[client] != 0 && random() % 5 == 0 ? 1 : 0);
    const auto key = std::tuple{client, of, 1 + random() % 64};
    const auto id = request(client, of, std::get<2>(key));
    switch (cache.arrived(id)) {
      case Verdict::carry_out:
        ASSERT_TRUE(carried_out.insert(key).second) << "twice";
        open.insert(key);
        break;
      case Verdict::answered:
        ASSERT_EQ(text_of(cache.reply(id)), fmt::format("{} {} {}", client, of, id.sequence));
        break;
      case Verdict::under_way:
        ASSERT_TRUE(open.erase(key)) << "nobody is at it";
        cache.answered(id, reply(fmt::format("{} {} {}", client, of, id.sequence)));
        break;
      case Verdict::stale:
        break;
    }
  }
}

}  // namespace
}  // namespace vmem::rdma
