// The chosen form of pages, with a test clock that advances only by the scripted codec times.
#include "tiers/disk/page_codec.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kBlock = 4096;
using Bytes = std::vector<std::byte>;

Bytes noise() {
  std::mt19937_64 random(7);
  Bytes page(kPage);
  for (std::size_t i = 0; i < page.size(); i += 8) {
    const std::uint64_t word = random();
    std::memcpy(page.data() + i, &word, 8);
  }
  return page;
}
Bytes half() {
  Bytes page = noise();
  for (std::size_t i = 64; i < page.size(); i += 128) std::memcpy(page.data() + i, page.data() + i - 64, 64);
  return page;
}

class PageCodecTest : public testing::Test {
 protected:
  // Each reading of the clock is `step_ns_` later, so every codec seems to take the same time.
  CompressionConfig automatic() {
    return {.on = true, .codec = nullptr, .now_ns = [this] { return now_ns_ += step_ns_; }};
  }
  PageCodec::Form store(PageCodec& codec, const Bytes& page, double path_bytes_s) {
    const compress::Conditions now{.page_bytes = kPage,
                                   .write_bytes_s = path_bytes_s,
                                   .read_bytes_s = path_bytes_s,
                                   .compressors = 4,
                                   .decompressors = 4,
                                   .fill = 0};
    return codec.encode({.page = page, .out = out_, .kind = 1, .now = now, .measurements = measurements_}, workspace_);
  }

  std::uint64_t now_ns_ = 0, step_ns_ = 100'000;
  std::uint64_t measurements_ = 1;
  Bytes out_ = Bytes(kPage);
  compress::Workspace workspace_;
};

TEST_F(PageCodecTest, WhatShrinksIsCompressedOnASlowPathAndComesBack) {
  PageCodec codec(automatic(), kBlock);
  const Bytes page = half();
  PageCodec::Form form;
  for (int i = 0; i < 40; ++i) {
    ++measurements_;
    form = store(codec, page, 50e6);
  }
  ASSERT_NE(form.codec, compress::kNone);
  EXPECT_LT(form.bytes, kPage * 2 / 3);
  Bytes back(kPage);
  ASSERT_TRUE(codec.decode({.stored = std::span(out_).first(form.bytes), .page = back, .codec = form.codec, .kind = 1},
                           workspace_));
  EXPECT_EQ(back, page);
}

TEST_F(PageCodecTest, NothingIsCompressedWhereThePathIsFasterThanCodecs) {
  PageCodec codec(automatic(), kBlock);
  const Bytes page = half();
  for (int i = 0; i < 200; ++i) EXPECT_EQ(store(codec, page, 50e9).codec, compress::kNone);
  EXPECT_EQ(codec.counters().compress_ns, 0u);
}

TEST_F(PageCodecTest, PagesOfOneWordAreThatWordOnAnyPath) {
  PageCodec codec(automatic(), kBlock);
  Bytes page(kPage, std::byte{0x3f});
  for (const double path_bytes_s : {0.0, 50e6, 50e9}) {
    const PageCodec::Form form = store(codec, page, path_bytes_s);
    EXPECT_EQ(form.codec, compress::kFill);
    EXPECT_EQ(form.bytes, 8u);
    Bytes back(kPage);
    ASSERT_TRUE(
        codec.decode({.stored = std::span(out_).first(8), .page = back, .codec = form.codec, .kind = 1}, workspace_));
    EXPECT_EQ(back, page);
  }
  EXPECT_EQ(codec.counters().pages[std::size_t(compress::kFill)], 3u);
  page.back() = std::byte{0x3e};
  EXPECT_EQ(store(codec, page, 50e9).codec, compress::kNone);
}

TEST_F(PageCodecTest, NothingIsCompressedBeforeThePathWasMeasured) {
  PageCodec codec(automatic(), kBlock);
  const Bytes page = half();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(store(codec, page, 0).codec, compress::kNone);
  EXPECT_EQ(codec.counters().sample_ns, 0u);
}

TEST_F(PageCodecTest, NoiseGoesAsItIsAndIsSampledLessAndLess) {
  PageCodec codec(automatic(), kBlock);
  const Bytes page = noise();
  for (int i = 0; i < 64; ++i) EXPECT_EQ(store(codec, page, 50e6).codec, compress::kNone);
  const std::uint64_t early_ns = codec.counters().sample_ns;
  EXPECT_GT(early_ns, 0u);
  for (int i = 0; i < 64; ++i) store(codec, page, 50e6);
  EXPECT_LT(codec.counters().sample_ns - early_ns, early_ns);
  EXPECT_EQ(codec.counters().pages[0], 128u);
}

TEST_F(PageCodecTest, WhenThePathWasNotBusyForLongAFewPagesGoAsTheyAre) {
  PageCodec codec(automatic(), kBlock);
  const Bytes page = half();
  for (int i = 0; i < 40; ++i) {
    ++measurements_;
    store(codec, page, 50e6);
  }
  int plain = 0;
  for (int i = 0; i < 144; ++i) plain += store(codec, page, 50e6).codec == compress::kNone;
  EXPECT_EQ(plain, 16);
}

TEST_F(PageCodecTest, ACodecThatIsNamedTakesEveryPageThatShrinks) {
  PageCodec codec({.on = true, .codec = compress::parse_setting("lz4")->codec, .now_ns = {}}, kBlock);
  EXPECT_NE(store(codec, half(), 0).codec, compress::kNone);
  EXPECT_EQ(store(codec, noise(), 0).codec, compress::kNone);
  const CompressionCounters counters = codec.counters();
  EXPECT_EQ(counters.refused_pages, 1u);
  EXPECT_EQ(counters.in_bytes, kPage);
  EXPECT_LT(counters.out_bytes, kPage * 2 / 3);
}

TEST_F(PageCodecTest, DamageIsSaid) {
  PageCodec codec({.on = true, .codec = compress::parse_setting("zstd-1")->codec, .now_ns = {}}, kBlock);
  const PageCodec::Form form = store(codec, half(), 0);
  out_[0] ^= std::byte{1};
  Bytes back(kPage);
  const auto decoded =
      codec.decode({.stored = std::span(out_).first(form.bytes), .page = back, .codec = form.codec}, workspace_);
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error().status, VMEM_ERROR_LOST);
}

}  // namespace
}  // namespace vmem::tiers
