#include "trace/encoding.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "trace/recorded.hpp"

namespace vmem::trace {
namespace {

// Events are equal if their bytes are: each byte comes from a field.
TEST(Encoding, ReadsBackWhatItWrote) {
  const std::vector<std::byte> bytes = bytes_of(one_of_each());
  std::vector<Event> read;
  ASSERT_TRUE(decode(bytes, read));
  ASSERT_EQ(read.size(), one_of_each().size());
  EXPECT_EQ(bytes_of(read), bytes);
  EXPECT_EQ(read[6].at_ns, 900'000'000'000u) << "times go back";
  const auto& launch = std::get<Launch>(read[2].body);
  EXPECT_EQ(launch.stream, 65535u);
  ASSERT_EQ(launch.named.size(), 2u);
  EXPECT_EQ(launch.named[1].granules, ~std::uint32_t{0});
  EXPECT_EQ(std::get<Name>(read[0].body).text, "void kernel<float>(float*, int)");
  EXPECT_FALSE(std::get<Transfer>(read[6].body).copied);
}

TEST(Encoding, ChunksAreReadEachByItself) {
  EventEncoder encoder;
  encoder.add(1'000'000, Busy{5});
  const auto first = encoder.take();
  encoder.add(2'000'000, Busy{6});
  std::vector<Event> read;
  ASSERT_TRUE(decode(encoder.take(), read));
  EXPECT_EQ(read.front().at_ns, 2'000'000u);
  ASSERT_TRUE(decode(first, read));
  EXPECT_EQ(read.back().at_ns, 1'000'000u);
}

TEST(Encoding, HeadersAreReadBack) {
  Header read;
  ASSERT_TRUE(decode(encode(some_header()), read));
  EXPECT_EQ(encode(read), encode(some_header()));
  EXPECT_EQ(read.devices.at(0).hbm_bytes, std::uint64_t{6} << 30);
}

TEST(Encoding, CutOffAnywhereItIsRefusedOrEndsBetweenTwoEvents) {
  const std::vector<std::byte> whole = bytes_of(one_of_each());
  std::size_t between = 0;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + std::ptrdiff_t(size));
    std::vector<Event> read;
    if (!decode(cut, read)) continue;
    EXPECT_EQ(bytes_of(read), cut);
    ++between;
  }
  EXPECT_EQ(between, one_of_each().size());
}

TEST(Encoding, RandomBytesAreRefusedOrMakeEvents) {
  const auto seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> bytes(random() % 200);
    for (std::byte& byte : bytes) byte = std::byte(random() % (i % 2 == 0 ? 256 : 14));
    std::vector<Event> read;
    if (decode(bytes, read)) {
      EXPECT_LE(read.size(), bytes.size());
    }
    Header header;
    (void)decode(bytes, header);
  }
}

// A launch that claims more names than there are bytes must not take memory for them.
TEST(Encoding, ImpossibleCountsAreRefused) {
  std::vector<std::byte> bytes;
  Encoder to(bytes);
  for (const std::uint64_t value : {std::uint64_t{3}, std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1},
                                    std::uint64_t{1}, std::uint64_t{1}, std::uint64_t{1}, std::uint64_t{1} << 60})
    to.integer(value);
  std::vector<Event> read;
  EXPECT_FALSE(decode(bytes, read));
}

}  // namespace
}  // namespace vmem::trace
