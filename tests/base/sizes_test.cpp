#include "base/sizes.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <string>
#include <utility>

namespace vmem {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

struct Accepted {
  const char* text;
  std::uint64_t value;
};

class AcceptedBytes : public testing::TestWithParam<Accepted> {};
TEST_P(AcceptedBytes, AreParsedExactly) {
  const auto bytes = parse_bytes(GetParam().text);
  ASSERT_TRUE(bytes) << bytes.error().message;
  EXPECT_EQ(*bytes, GetParam().value);
}
INSTANTIATE_TEST_SUITE_P(
    Sizes, AcceptedBytes,
    testing::Values(Accepted{"0", 0}, Accepted{"0GiB", 0}, Accepted{"4096", 4096}, Accepted{"1B", 1},
                    Accepted{"1kB", 1000}, Accepted{"1KiB", 1024}, Accepted{"2MB", 2'000'000},
                    Accepted{"2MiB", 2u << 20}, Accepted{"16GiB", 16ull << 30}, Accepted{"16 GiB", 16ull << 30},
                    Accepted{"16gib", 16ull << 30}, Accepted{"16G", 16ull << 30}, Accepted{"64M", 64ull << 20},
                    Accepted{"4k", 4096}, Accepted{"1.5 T", 3ull << 39}, Accepted{"1GB", 1'000'000'000},
                    Accepted{"3TiB", 3ull << 40}, Accepted{"1.5GiB", 3ull << 29}, Accepted{"0.5KiB", 512},
                    Accepted{"1.50KiB", 1536}, Accepted{"0.001kB", 1}, Accepted{"007", 7},
                    Accepted{"15EiB", 15ull << 60}, Accepted{"18446744073709551615", kMax},
                    Accepted{"15.5EiB", 31ull << 59}, Accepted{"000000000000000000000000001KiB", 1024}));

struct Refused {
  const char* text;
  const char* why;
};

class RefusedBytes : public testing::TestWithParam<Refused> {};
TEST_P(RefusedBytes, SayWhy) {
  const auto bytes = parse_bytes(GetParam().text);
  ASSERT_FALSE(bytes) << *bytes;
  EXPECT_EQ(bytes.error().status, VMEM_ERROR_INVALID_OPTION);
  EXPECT_THAT(bytes.error().message, HasSubstr(GetParam().why));
  EXPECT_THAT(bytes.error().message, HasSubstr(fmt::format("'{}'", GetParam().text)));
}
INSTANTIATE_TEST_SUITE_P(
    Sizes, RefusedBytes,
    testing::Values(Refused{"", "does not start with a digit"}, Refused{"GiB", "does not start with a digit"},
                    Refused{" 1", "does not start with a digit"}, Refused{"+1", "does not start with a digit"},
                    Refused{".5GiB", "does not start with a digit"}, Refused{"-1", "negative"},
                    Refused{"-16GiB", "negative"}, Refused{"1.GiB", "no digit follows the point"},
                    Refused{"1.5", "not whole in bytes"}, Refused{"1.0001KiB", "not whole in bytes"},
                    Refused{"16X", "'X' is no unit"}, Refused{"16GiBs", "'GiBs' is no unit"},
                    Refused{"0x10", "'x10' is no unit"}, Refused{"1e9", "'e9' is no unit"},
                    Refused{"1,5GiB", "',5GiB' is no unit"}, Refused{"1.5.1GiB", "no unit"},
                    Refused{"1GiB ", "no unit"}, Refused{"18446744073709551616", "64 bits"},
                    Refused{"16EiB", "64 bits"}, Refused{"99999999999999999999EiB", "64 bits"},
                    Refused{"100000000000000000000000000000000000000000", "64 bits"},
                    Refused{"1.000000000000000000000000000000000001EiB", "too many digits"}));

TEST(Sizes, ExactBytesParsesBackForEveryMagnitude) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 10'000; ++i) {
    const std::uint64_t bytes = random() >> (i % 64) << (i % 21);
    ASSERT_EQ(parse_bytes(exact_bytes(bytes)), bytes) << exact_bytes(bytes);
  }
  EXPECT_EQ(exact_bytes(0), "0B");
  EXPECT_EQ(exact_bytes(3ull << 29), "1536MiB");
}

TEST(Sizes, FormatIsExactWhereShortAndThreeDigitsOtherwise) {
  const std::array<std::pair<std::uint64_t, const char*>, 14> expected{{
      {0, "0 B"},
      {300, "300 B"},
      {1023, "1023 B"},
      {1024, "1 KiB"},
      {1536, "1.5 KiB"},
      {1280, "1.25 KiB"},
      {1'000'000, "977 KiB"},
      {(16ull << 30) + 1, "16.0 GiB"},
      {16ull << 30, "16 GiB"},
      {(1ull << 30) - 1, "1.00 GiB"},
      {(1ull << 20) - (1ull << 10), "1023 KiB"},
      {5'000'000'000, "4.66 GiB"},
      {kMax, "16.0 EiB"},
      {1ull << 60, "1 EiB"},
  }};
  for (const auto& [bytes, text] : expected) EXPECT_EQ(format_bytes(bytes), text) << bytes;
}

TEST(Durations, AreParsedExactly) {
  EXPECT_EQ(parse_duration_us("100ms"), 100'000u);
  EXPECT_EQ(parse_duration_us("2s"), 2'000'000u);
  EXPECT_EQ(parse_duration_us("250us"), 250u);
  EXPECT_EQ(parse_duration_us("1.5 s"), 1'500'000u);
  EXPECT_EQ(parse_duration_us("1min"), 60'000'000u);
  EXPECT_EQ(parse_duration_us("0"), 0u);
}

TEST(Durations, WithoutUnitNegativeTooFineOrTooLongAreRefused) {
  for (const char* text : {"100", "-1ms", "0.5us", "1.0001ms", "1h", "ms", "", "999999999999999999s"}) {
    const auto us = parse_duration_us(text);
    ASSERT_FALSE(us) << text;
    EXPECT_EQ(us.error().status, VMEM_ERROR_INVALID_OPTION);
    EXPECT_THAT(us.error().message, HasSubstr("duration"));
  }
  EXPECT_THAT(parse_duration_us("100").error().message, HasSubstr("the unit is missing"));
}

TEST(Durations, ExactFormParsesBack) {
  for (const std::uint64_t us : {0ull, 1ull, 999ull, 1'000ull, 1'500ull, 1'000'000ull, 90'000'000ull}) {
    EXPECT_EQ(parse_duration_us(exact_duration_us(us)), us);
  }
}

}  // namespace
}  // namespace vmem
