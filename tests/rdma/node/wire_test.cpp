#include "rdma/node/wire.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <random>

#include "rdma/transport/test_node.hpp"

namespace vmem::rdma::wire {
namespace {

using ::testing::HasSubstr;

Header request() {
  return {.kind = Kind::put, .request = {7, Epoch{3}, 42}, .payload_bytes = 2 << 20, .order = Order::background};
}

std::string refusal(ConstBytes bytes) {
  const auto parsed = parse(bytes);
  return parsed ? "it was accepted" : parsed.error().message;
}

// Changes a header field and fixes the checksum, like a node with another version of the protocol.
template <class Change>
std::vector<std::byte> changed(Change change) {
  auto bytes = *write(request(), bytes_of("body"));
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  change(header);
  std::memcpy(bytes.data(), &header, sizeof(header));
  const ConstBytes pieces[] = {ConstBytes(bytes).first(offsetof(Header, checksum)),
                               ConstBytes(bytes).subspan(sizeof(Header))};
  const std::uint64_t sum = checksum(pieces);
  std::memcpy(bytes.data() + offsetof(Header, checksum), &sum, sizeof(sum));
  return bytes;
}

TEST(Wire, WhatWasWrittenIsParsed) {
  const auto bytes = write(request(), bytes_of("body"));
  ASSERT_TRUE(bytes);
  const auto parsed = parse(*bytes);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->header.kind, Kind::put);
  EXPECT_EQ(parsed->header.request, (RequestId{7, Epoch{3}, 42}));
  EXPECT_EQ(parsed->header.payload_bytes, 2u << 20);
  EXPECT_EQ(parsed->header.order, Order::background);
  EXPECT_EQ(text_of(parsed->body), "body");
}

TEST(Wire, TheLayoutIsFixed) {
  // The bytes on the wire, in hexadecimal. A change of layout requires a new protocol version.
  const auto bytes = *write(request());
  std::string hex;
  for (const std::byte byte : ConstBytes(bytes).first(56)) hex += fmt::format("{:02x}", static_cast<unsigned>(byte));
  EXPECT_EQ(hex,
            "564d454d"
            "0600"
            "0800"
            "0700000000000000"
            "0300000000000000"
            "2a00000000000000"
            "0000200000000000"
            "0200000000000000"
            "00000000"
            "00000000");
}

TEST(Wire, EveryBitThatChangesIsNoticed) {
  const auto bytes = *write(request(), bytes_of("body"));
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    auto flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_FALSE(parse(flipped)) << bit;
  }
}

TEST(Wire, EveryLengthButTheRightOneIsRefused) {
  const auto bytes = *write(request(), bytes_of("body"));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    // Memory of exactly this size, so that a sanitizer detects reads past the end.
    const std::vector<std::byte> shortened(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_FALSE(parse(shortened)) << length;
  }
  auto longer = bytes;
  longer.push_back({});
  EXPECT_FALSE(parse(longer));
}

TEST(Wire, RefusalsNameTheReasonAndBothValues) {
  EXPECT_THAT(refusal({}), HasSubstr("0 bytes, a header has 64"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.magic = 0x1234; })), HasSubstr("begins with 0x1234, not 0x4d454d56"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.version = 9; })), HasSubstr("protocol version 9, its connection 6"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.kind = Kind{77}; })), HasSubstr("kind 77 is unknown"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.body_bytes = 5; })), HasSubstr("said to have 5 bytes and has 4"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.body_bytes = 0xffffffff; })), HasSubstr("4294967295"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.reserved = 1; })), HasSubstr("reserved"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.request.sequence = 0; })), HasSubstr("sequence is 0"));
  EXPECT_THAT(refusal(changed([](Header& h) { h.payload_bytes = kMostPayloadBytes + 1; })),
              HasSubstr("the most is 1073741824"));
  EXPECT_THAT(refusal(changed([](Header&) {})), HasSubstr("accepted"));
}

TEST(Wire, NoiseIsRefused) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> noise(random() % (kMostHeaderBytes + 1));
    for (std::byte& byte : noise) byte = static_cast<std::byte>(random());
    EXPECT_FALSE(parse(noise));
  }
}

TEST(Wire, WhatCouldNotBeParsedIsNotWritten) {
  EXPECT_FALSE(write(request(), std::vector<std::byte>(kMostBodyBytes + 1)));
  EXPECT_TRUE(write(request(), std::vector<std::byte>(kMostBodyBytes)));
  Header header = request();
  header.request.sequence = 0;
  EXPECT_FALSE(write(header));
}

}  // namespace
}  // namespace vmem::rdma::wire
