#include "compress/sample.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "compress/guarded.hpp"
#include "compress/pages.hpp"
#include "compress/registry.hpp"

namespace vmem::compress {
namespace {

constexpr std::size_t kPiece = std::size_t{8} << 10;

// Records its inputs and claims to compress to a quarter.
class Recorder : public Codec {
 public:
  CodecId id() const noexcept override { return CodecId(255); }
  std::string_view name() const noexcept override { return "recorder"; }
  Result<std::optional<std::size_t>> compress(std::span<const std::byte> in, std::span<std::byte> out,
                                              Workspace&) const override {
    seen.assign(in.begin(), in.end());
    room = out.size();
    if (!shrinks) return std::nullopt;
    return in.size() / 4;
  }
  Status decompress(std::span<const std::byte> in, std::span<std::byte> out, Workspace&) const override {
    decompressed = in.size();
    into = out.size();
    return {};
  }
  bool shrinks = true;
  mutable Bytes seen;
  mutable std::size_t room = 0, decompressed = 0, into = 0;
};

// A clock that advances by `step_ns` at each reading.
ClockNs ticking(std::uint64_t step_ns) {
  return [now = std::uint64_t{0}, step_ns]() mutable { return now += step_ns; };
}

// Every 8 bytes hold their offset in the page.
Bytes numbered(std::size_t bytes) {
  Bytes page(bytes);
  for (std::uint64_t at = 0; at < bytes; at += 8) std::memcpy(&page[at], &at, 8);
  return page;
}

std::vector<std::uint64_t> places(const Bytes& sample) {
  std::vector<std::uint64_t> found;
  for (std::size_t piece = 0; piece < sample.size(); piece += kPiece) {
    std::uint64_t at = 0;
    std::memcpy(&at, &sample[piece], 8);
    found.push_back(at);
  }
  return found;
}

class SampleOf : public ::testing::Test {
 protected:
  Recorder recorder;
  Workspace workspace;
  std::vector<std::uint64_t> pieces_of(const Bytes& page, std::uint64_t bytes, std::uint64_t seed) {
    const Guarded guarded(page, Edge::end);
    const auto sample = take_sample(guarded.bytes(), {bytes, seed, {&recorder}}, workspace, ticking(1));
    EXPECT_TRUE(sample);
    EXPECT_EQ(sample->bytes, recorder.seen.size());
    return places(recorder.seen);
  }
};

TEST_F(SampleOf, APageIsOnePieceOfEachOfItsEqualParts) {
  constexpr std::size_t kPage = std::size_t{2} << 20, kPieces = 8;
  const Bytes page = numbered(kPage);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto found = pieces_of(page, kPieces * kPiece, seed);
    ASSERT_EQ(found.size(), kPieces);
    for (std::size_t i = 0; i < kPieces; ++i) {
      EXPECT_EQ(found[i] / (kPage / kPieces), i);
      EXPECT_LE(found[i] % (kPage / kPieces), kPage / kPieces - kPiece) << "whole";
      EXPECT_EQ(found[i] % 64, 0u);
    }
    for (std::size_t at = 0; at < recorder.seen.size(); at += kPiece) {
      EXPECT_EQ(std::memcmp(&recorder.seen[at], &page[found[at / kPiece]], kPiece), 0);
    }
  }
}

TEST_F(SampleOf, SeedsChooseThePlacesAndTheSameSeedTheSame) {
  const Bytes page = numbered(std::size_t{2} << 20);
  std::set<std::vector<std::uint64_t>> different;
  for (std::uint64_t seed = 0; seed < 100; ++seed) different.insert(pieces_of(page, 4 * kPiece, seed));
  EXPECT_EQ(different.size(), 100u);
  EXPECT_EQ(pieces_of(page, 4 * kPiece, 7), pieces_of(page, 4 * kPiece, 7));
}

TEST_F(SampleOf, ASmallPageIsThePageItself) {
  for (const std::size_t bytes : {8u, 800u, 8192u, 30'000u, 32'768u, 33'000u}) {
    const Bytes page = numbered(bytes);
    (void)pieces_of(page, 4 * kPiece, 3);
    EXPECT_EQ(recorder.seen, page) << bytes;
  }
}

TEST_F(SampleOf, EachCodecsTimeAndFractionAreItsOwn) {
  const Bytes page = numbered(std::size_t{2} << 20);
  Recorder stubborn;
  stubborn.shrinks = false;
  const auto sample = take_sample(page, {4 * kPiece, 0, {&recorder, &stubborn}}, workspace, ticking(1000));
  ASSERT_TRUE(sample);
  ASSERT_EQ(sample->trials.size(), 2u);
  EXPECT_EQ(sample->trials[0].codec, &recorder);
  EXPECT_DOUBLE_EQ(sample->trials[0].fraction, 0.25);
  EXPECT_DOUBLE_EQ(sample->trials[0].compress_s, 1e-6);
  EXPECT_DOUBLE_EQ(sample->trials[0].decompress_s, 1e-6);
  EXPECT_EQ(recorder.decompressed, kPiece);
  EXPECT_EQ(recorder.into, 4 * kPiece);
  EXPECT_EQ(sample->trials[1].codec, &stubborn);
  EXPECT_EQ(sample->trials[1].fraction, 1);
  EXPECT_DOUBLE_EQ(sample->trials[1].compress_s, 1e-6);
  EXPECT_EQ(sample->trials[1].decompress_s, 0);
  EXPECT_EQ(stubborn.decompressed, 0u);
  EXPECT_EQ(stubborn.room, 4 * kPiece - 1);
  EXPECT_DOUBLE_EQ(sample->seconds, 6e-6) << "from first to last look at the clock";
}

TEST_F(SampleOf, AnEmptyPlanOrPageTakesNoTime) {
  for (const auto& sample : {take_sample(numbered(4096), {}, workspace, ticking(1)),
                             take_sample({}, {4 * kPiece, 0, {&recorder}}, workspace, ticking(1))}) {
    ASSERT_TRUE(sample);
    EXPECT_EQ(sample->bytes, 0u);
    EXPECT_EQ(sample->seconds, 0);
  }
}

TEST_F(SampleOf, WeightsShrinkMostBehindAShuffleOfTheirWidth) {
  for (const auto& [kind, best] :
       {std::pair{Kind::bf16, "shuffle2+zstd-huffman"}, std::pair{Kind::fp32, "shuffle4+zstd-huffman"}}) {
    SamplePlan plan{4 * kPiece, 0, {}};
    for (const std::string_view name :
         {"lz4", "zstd-1", "zstd-3", "shuffle2+zstd-huffman", "shuffle4+zstd-huffman", "shuffle8+zstd-huffman"}) {
      plan.codecs.push_back(parse_setting(name)->codec);
    }
    const auto sample = take_sample(make_page(kind, std::size_t{2} << 20), plan, workspace, ticking(1));
    const auto least = std::ranges::min_element(sample->trials, {}, &Trial::fraction);
    EXPECT_EQ(least->codec->name(), best) << kind_name(kind);
    EXPECT_LT(least->fraction, kind == Kind::bf16 ? 0.72 : 0.88);
  }
}

}  // namespace
}  // namespace vmem::compress
