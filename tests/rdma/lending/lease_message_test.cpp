#include "rdma/lending/lease_message.hpp"

#include <gtest/gtest.h>

namespace vmem::rdma::wire {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint16_t kOld = kResizableVersion - 1;

Lent some_lease() {
  return {.lease = 7,
          .bytes = {.memory = 6 * kMiB, .disk = 8 * kMiB, .hbm = 10 * kMiB},
          .room = {.memory = 2 * kMiB, .hbm = 4 * kMiB},
          .memory = {{2 * kMiB, 4 * kMiB}, {64 * kMiB, 2 * kMiB}},
          .answer = Answer::again,
          .nodes = 3,
          .lendable_bytes = 11,
          .leased_bytes = 12,
          .holder = 13,
          .holder_bytes = 14,
          .holder_left_us = 15};
}

TEST(LeaseMessage, ALeaseArrivesAsItWasSent) {
  const Lent sent = some_lease();
  const auto read = read_lent(encode(sent));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->lease, 7u);
  EXPECT_EQ(read->bytes, sent.bytes);
  EXPECT_EQ(read->room, sent.room);
  EXPECT_EQ(read->extents(), sent.memory);
  EXPECT_EQ(read->answer, Answer::again);
  EXPECT_EQ(std::tuple(read->nodes, read->lendable_bytes, read->leased_bytes), std::tuple(3u, 11u, 12u));
  EXPECT_EQ(std::tuple(read->holder, read->holder_bytes, read->holder_left_us), std::tuple(13u, 14u, 15u));
  EXPECT_LE(encode(sent).size(), lent_bytes(kProtocolVersion).most);
}

TEST(LeaseMessage, AnOlderNodeGetsOneExtentAtTheBeginning) {
  const auto body = encode(some_lease(), kOld);
  EXPECT_EQ(body.size(), lent_bytes(kOld).most);
  const auto read = read_lent(body, kOld);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->extents(), (std::vector<Extent>{{0, 6 * kMiB}}));
  EXPECT_EQ(read->room, MediumBytes{});
  EXPECT_FALSE(read_lent(body)) << "not as a newer one's";
  EXPECT_FALSE(read_lent(encode(some_lease()), kOld));
}

TEST(LeaseMessage, AnAskArrivesAsItWasSent) {
  const Ask sent{{.memory = kMiB * 4, .disk = 1, .hbm = 2}, {{2 * kMiB, 2 * kMiB}, {8 * kMiB, 6 * kMiB}}, 7};
  const auto read = read_ask(encode(sent));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->bytes, sent.bytes);
  EXPECT_EQ(read->returned, sent.returned);
  EXPECT_EQ(read->lease, 7u);
  const auto old = read_ask(encode(sent, kOld), kOld);
  ASSERT_TRUE(old);
  EXPECT_EQ(old->bytes, sent.bytes);
  EXPECT_TRUE(old->returned.empty());
}

TEST(LeaseMessage, ExtentsThatOverlapOrAreTooManyAreRefused) {
  EXPECT_FALSE(read_ask(encode(Ask{{}, {{0, 4 * kMiB}, {2 * kMiB, 4 * kMiB}}})));
  EXPECT_FALSE(read_ask(encode(Ask{{}, {{0, 0}}})));
  Ask many;
  for (std::uint64_t i = 0; i <= kMostExtents; ++i) many.returned.push_back({i * 4 * kMiB, 2 * kMiB});
  EXPECT_FALSE(read_ask(encode(many)));
  many.returned.pop_back();
  EXPECT_TRUE(read_ask(encode(many)));
  std::vector<std::byte> cut = encode(many);
  cut.pop_back();
  EXPECT_FALSE(read_ask(cut));
  EXPECT_FALSE(read_ask({}));
}

}  // namespace
}  // namespace vmem::rdma::wire
