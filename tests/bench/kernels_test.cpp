// Compares the host twins with the simplest computation of the same result.
#include "bench/kernels/twins.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "bench/kernels/word.hpp"

namespace vmem::bench {
namespace {

constexpr std::uint64_t kSeed = 7;

std::vector<std::uint64_t> filled(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> words(count);
  twins::fill(words.data(), first, count, kSeed);
  return words;
}

std::uint64_t checksum_of(const std::vector<std::uint64_t>& words, std::uint64_t first = 0) {
  std::uint64_t sum = 0;
  twins::checksum(words.data(), first, words.size(), &sum);
  return sum;
}

TEST(Fill, WritesThePatternOfEachPlace) {
  const auto words = filled(1000, 513);
  for (std::uint64_t i = 0; i < words.size(); ++i) ASSERT_EQ(words[i], pattern_word(kSeed, 1000 + i));
}

TEST(Checksum, IsTheSumOfTheTerms) {
  const auto words = filled(5, 1001);
  std::uint64_t expected = 0;
  for (std::uint64_t i = 0; i < words.size(); ++i) expected += checksum_term(5 + i, words[i]);
  EXPECT_EQ(checksum_of(words, 5), expected);
}

TEST(Checksum, OfTwoHalvesIsThatOfTheWhole) {
  const auto words = filled(0, 64);
  std::uint64_t sum = 0;
  twins::checksum(words.data() + 32, 32, 32, &sum);
  twins::checksum(words.data(), 0, 32, &sum);
  EXPECT_EQ(sum, checksum_of(words));
}

TEST(Checksum, NoticesAChangedBitAnywhere) {
  auto words = filled(0, 16);
  const std::uint64_t right = checksum_of(words);
  for (auto& word : words)
    for (int bit = 0; bit < 64; ++bit) {
      word ^= std::uint64_t{1} << bit;
      ASSERT_NE(checksum_of(words), right);
      word ^= std::uint64_t{1} << bit;
    }
}

TEST(Checksum, NoticesTwoPagesThatChangedPlaces) {
  auto words = filled(0, 1024);
  const std::uint64_t right = checksum_of(words);
  std::swap_ranges(words.begin(), words.begin() + 512, words.begin() + 512);
  EXPECT_NE(checksum_of(words), right);
}

TEST(Checksum, NoticesAnOlderVersionAndAZeroPage) {
  auto words = filled(0, 1024);
  const std::uint64_t right = checksum_of(words);
  twins::increment(words.data(), 512, 1);
  EXPECT_NE(checksum_of(words), right);
  std::fill_n(words.begin(), 512, 0);
  EXPECT_NE(checksum_of(words), right);
}

TEST(Verify, FindsTheFirstBadWordAndCountsAll) {
  auto words = filled(100, 64);
  twins::increment(words.data(), words.size(), 3);
  std::uint64_t bad[2] = {~std::uint64_t{0}, 0};
  twins::verify(words.data(), 100, words.size(), kSeed, 3, bad);
  EXPECT_EQ(bad[1], 0u);
  words[50] ^= 1;
  words[20] ^= 1;
  twins::verify(words.data(), 100, words.size(), kSeed, 3, bad);
  EXPECT_EQ(bad[0], 120u);
  EXPECT_EQ(bad[1], 2u);
}

TEST(Blocks, SumsTheWholeRegionInEitherOrder) {
  const auto words = filled(0, 4096);
  for (const std::uint32_t strided : {0u, 1u}) {
    std::uint64_t sum = 0;
    twins::blocks(words.data(), words.size(), strided, &sum);
    EXPECT_EQ(sum, checksum_of(words));
  }
}

TEST(Random, ReadsTheLinesThatRandomLineNames) {
  constexpr std::uint64_t kLines = 64;
  const auto words = filled(0, kLines * kLineWords);
  std::uint64_t expected = 0;
  std::set<std::uint64_t> lines;
  for (std::uint64_t read = 0; read < 500; ++read) {
    const std::uint64_t line = random_line(kSeed, read, kLines);
    ASSERT_LT(line, kLines);
    lines.insert(line);
    for (std::uint64_t i = line * kLineWords; i < (line + 1) * kLineWords; ++i) expected += checksum_term(i, words[i]);
  }
  std::uint64_t sum = 0;
  twins::random(words.data(), kLines, 500, kSeed, &sum);
  EXPECT_EQ(sum, expected);
  EXPECT_GT(lines.size(), kLines * 9 / 10) << "reads do not spread over the lines";
}

TEST(Histogram, CountsEveryByteOfAnyLength) {
  const auto words = filled(0, 128);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(words.data());
  for (const std::uint64_t count : {0u, 1u, 3u, 4u, 15u, 1021u}) {
    std::vector<std::uint64_t> expected(256);
    std::vector<std::uint64_t> bins(256);
    for (std::uint64_t i = 0; i < count; ++i) ++expected[bytes[i]];
    twins::histogram(bytes, count, bins.data());
    EXPECT_EQ(bins, expected) << count << " bytes";
  }
}

TEST(Matmul, EqualsTheTripleLoopAndAddsWhenAskedTo) {
  constexpr std::uint32_t kEdge = kernels::kMatmulBlock;
  std::vector<float> a(kEdge * kEdge), b(a.size()), c(a.size(), 99.0f), expected(a.size());
  twins::matrix_fill(a.data(), kEdge, 0, 5, 1);
  twins::matrix_fill(b.data(), kEdge, 5, 0, 2);
  for (std::uint32_t i = 0; i < kEdge; ++i)
    for (std::uint32_t j = 0; j < kEdge; ++j)
      for (std::uint32_t k = 0; k < kEdge; ++k) expected[i * kEdge + j] += a[i * kEdge + k] * b[k * kEdge + j];
  twins::matmul(a.data(), b.data(), c.data(), kEdge, 0);
  EXPECT_EQ(c, expected);
  twins::matmul(a.data(), b.data(), c.data(), kEdge, 1);
  for (float& entry : expected) entry *= 2;
  EXPECT_EQ(c, expected);
}

TEST(MatrixFill, DependsOnThePlaceInTheMatrixNotInTheTile) {
  std::vector<float> whole(8 * 8), part(4 * 4);
  twins::matrix_fill(whole.data(), 8, 10, 20, kSeed);
  twins::matrix_fill(part.data(), 4, 14, 24, kSeed);
  for (int r = 0; r < 4; ++r)
    for (int c = 0; c < 4; ++c) EXPECT_EQ(part[r * 4 + c], whole[(r + 4) * 8 + c + 4]);
  std::set<float> values(whole.begin(), whole.end());
  EXPECT_EQ(values, (std::set<float>{-2, -1, 0, 1, 2}));
}

}  // namespace
}  // namespace vmem::bench
