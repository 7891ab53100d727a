// Requirements on every Codec. Input and output are in guarded memory, because the libraries are
// built without sanitizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "campaign/seeds.hpp"
#include "compress/guarded.hpp"
#include "compress/pages.hpp"
#include "compress/registry.hpp"

namespace vmem::compress {
namespace {

constexpr std::size_t kSmall = 600;  // tested byte by byte
// Several blocks, and a rest smaller than an element.
constexpr std::size_t kBlocks = (std::size_t{600} << 10) + 5;
constexpr std::size_t kPage = std::size_t{2} << 20;

Bytes stored(const Codec& codec, std::span<const std::byte> page, Workspace& workspace) {
  Bytes out(page.size() + page.size() / 64 + 256);
  const auto written = codec.compress(page, out, workspace);
  EXPECT_TRUE(written) << written.error().message;
  EXPECT_TRUE(*written) << "this is the worst case's room";
  out.resize(written->value_or(0));
  return out;
}

class CodecConformance : public ::testing::TestWithParam<std::string_view> {
 protected:
  const Codec& codec = *parse_setting(GetParam())->codec;
  Workspace workspace;

  void expect_lost(std::span<const std::byte> in, std::span<std::byte> out) {
    const Status read = codec.decompress(in, out, workspace);
    ASSERT_FALSE(read) << in.size() << " bytes for " << out.size();
    EXPECT_EQ(read.error().status, VMEM_ERROR_LOST) << read.error().message;
    EXPECT_NE(read.error().message.find(codec.name().substr(codec.name().find('+') + 1)), std::string::npos)
        << read.error().message;
  }
  void expect_round_trip(const Bytes& page) {
    for (const Edge edge : {Edge::end, Edge::start}) {
      const Guarded in(page, edge), out(page.size(), edge);
      const Guarded kept(stored(codec, in.bytes(), workspace), edge);
      const Status read = codec.decompress(kept.bytes(), out.bytes(), workspace);
      ASSERT_TRUE(read) << read.error().message;
      ASSERT_TRUE(std::ranges::equal(out.bytes(), page));
    }
  }
};

TEST_P(CodecConformance, IsFoundByItsIdAndItsName) {
  EXPECT_EQ(codec.name(), GetParam());
  EXPECT_EQ(*find(codec.id()), &codec);
}

TEST_P(CodecConformance, EveryShapeOfEveryKindComesBack) {
  for (const Kind kind : kKinds) {
    for (const std::size_t bytes : {0u, 1u, 2u, 3u, 7u, 8u, 9u, 15u, 16u, 17u, 63u, 255u, 4096u, 65'537u}) {
      SCOPED_TRACE(testing::Message() << kind_name(kind) << ", " << bytes << " bytes");
      expect_round_trip(make_page(kind, bytes));
    }
  }
}

TEST_P(CodecConformance, WholePagesOfEveryKindComeBack) {
  for (const Kind kind : kKinds) {
    SCOPED_TRACE(kind_name(kind));
    expect_round_trip(make_page(kind, kPage));
    expect_round_trip(make_page(kind, kBlocks));
  }
}

TEST_P(CodecConformance, AnOutputOfAnySizeIsFilledOrRefused) {
  for (const Kind kind : {Kind::noise, Kind::half, Kind::zeros, Kind::fp32}) {
    const Bytes page = make_page(kind, kSmall);
    const std::size_t enough = stored(codec, page, workspace).size() + 64;
    const Guarded out(enough, Edge::end), back(page.size(), Edge::end);
    bool fitted = false;
    for (std::size_t room = 0; room <= enough; ++room) {
      SCOPED_TRACE(testing::Message() << kind_name(kind) << ", room for " << room);
      const auto written = codec.compress(page, out.bytes(room), workspace);
      ASSERT_TRUE(written) << written.error().message;
      fitted = written->has_value();
      if (!fitted) continue;
      ASSERT_LE(**written, room);
      ASSERT_TRUE(codec.decompress(out.bytes(room).first(**written), back.bytes(), workspace));
      ASSERT_TRUE(std::ranges::equal(back.bytes(), page));
    }
    EXPECT_TRUE(fitted) << "into " << enough;
  }
}

TEST_P(CodecConformance, LargePagesAreRefusedWhereverTheRoomEnds) {
  const Bytes page = make_page(Kind::fp32, kBlocks);
  const std::size_t least = stored(codec, page, workspace).size();
  const Guarded out(least, Edge::end), back(page.size(), Edge::end);
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const std::size_t room = random() % least;
    const auto written = codec.compress(page, out.bytes(room), workspace);
    ASSERT_TRUE(written) << written.error().message;
    if (!*written) continue;
    // Less room may change the encoding, but not the decoded bytes.
    ASSERT_TRUE(codec.decompress(out.bytes(room).first(**written), back.bytes(), workspace)) << room;
    ASSERT_TRUE(std::ranges::equal(back.bytes(), page)) << room;
  }
}

TEST_P(CodecConformance, NoiseDoesNotFitIntoLessThanItself) {
  const Bytes page = make_page(Kind::noise, kPage);
  Bytes out(page.size() - page.size() / 32);
  EXPECT_FALSE(*codec.compress(page, out, workspace));
}

TEST_P(CodecConformance, WhatIsCutOffAnywhereIsAnError) {
  for (const Kind kind : {Kind::noise, Kind::half, Kind::zeros, Kind::fp32}) {
    SCOPED_TRACE(kind_name(kind));
    const Bytes whole = stored(codec, make_page(kind, kSmall), workspace);
    const Guarded out(kSmall, Edge::end);
    for (std::size_t left = 0; left < whole.size(); ++left) {
      const Guarded in({whole.data(), left}, Edge::end);
      expect_lost(in.bytes(), out.bytes());
    }
  }
}

TEST_P(CodecConformance, WhatIsTooLongIsAnError) {
  for (const std::size_t more : {1u, 4u, 100u}) {
    Bytes longer = stored(codec, make_page(Kind::half, kSmall), workspace);
    longer.resize(longer.size() + more);
    const Guarded in(longer, Edge::end), out(kSmall, Edge::end);
    expect_lost(in.bytes(), out.bytes());
  }
}

TEST_P(CodecConformance, AnotherLengthThanThatOfThePageIsAnError) {
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kSmall}) {
    const Guarded in(stored(codec, make_page(Kind::half, bytes), workspace), Edge::end);
    for (const std::size_t other :
         {std::size_t{0}, std::size_t{1}, kSmall - 1, kSmall, kSmall + 1, 2 * kSmall, kBlocks}) {
      if (other == bytes) continue;
      const Guarded out(other, Edge::end);
      expect_lost(in.bytes(), out.bytes());
    }
  }
}

TEST_P(CodecConformance, AnyByteOfASmallPageMayBeAnyOther) {
  for (const Kind kind : {Kind::half, Kind::zeros, Kind::fp32}) {
    const Bytes good = stored(codec, make_page(kind, kSmall), workspace);
    const Guarded in(good, Edge::end), out(kSmall, Edge::end);
    for (std::size_t at = 0; at < good.size(); ++at) {
      for (int change = 1; change < 256; change += at < 32 ? 1 : 17) {
        in.bytes()[at] = good[at] ^ std::byte(change);
        // The result may be wrong bytes, which checksums detect, but not a wrong length or an
        // access beyond the guards.
        (void)codec.decompress(in.bytes(), out.bytes(), workspace);
      }
      in.bytes()[at] = good[at];
    }
    ASSERT_TRUE(codec.decompress(in.bytes(), out.bytes(), workspace)) << "the workspace is as good as before";
    EXPECT_TRUE(std::ranges::equal(out.bytes(), make_page(kind, kSmall)));
  }
}

TEST_P(CodecConformance, BitsOfALargePageMayFlip) {
  const std::uint64_t seed = test::printed_seed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (const Kind kind : {Kind::half, Kind::bf16}) {
    const Bytes good = stored(codec, make_page(kind, kBlocks), workspace);
    const Guarded in(good, Edge::end), out(kBlocks, Edge::end);
    for (int round = 0; round < 100; ++round) {
      for (int flip = 0; flip <= round % 20; ++flip) {
        in.bytes()[random() % good.size()] ^= std::byte(1u << random() % 8);
      }
      (void)codec.decompress(in.bytes(), out.bytes(), workspace);
      std::ranges::copy(good, in.bytes().begin());
    }
    ASSERT_TRUE(codec.decompress(in.bytes(), out.bytes(), workspace));
  }
}

TEST_P(CodecConformance, NoiseIsNoPage) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const Guarded in(make_page(Kind::noise, 1 + seed * 7 % 500, seed), Edge::end), out(kSmall, Edge::end);
    const Status read = codec.decompress(in.bytes(), out.bytes(), workspace);
    EXPECT_FALSE(read) << seed;
  }
}

TEST_P(CodecConformance, AUsedWorkspaceChangesNothing) {
  for (const Kind kind : {Kind::half, Kind::fp32}) {
    for (const std::size_t bytes : {kBlocks, kSmall, kPage}) {
      const Bytes page = make_page(kind, bytes);
      for (const std::string_view other : {"zstd-19", "lz4", "shuffle2+zstd-huffman"}) {
        (void)stored(*parse_setting(other)->codec, make_page(Kind::bf16, kSmall), workspace);
      }
      Workspace fresh;
      EXPECT_EQ(stored(codec, page, workspace), stored(codec, page, fresh));
    }
  }
}

TEST_P(CodecConformance, ThreadsWithWorkspacesOfTheirOwnShareACodec) {
  std::vector<std::thread> threads;
  std::array<int, 4> good{};
  for (std::size_t thread = 0; thread < good.size(); ++thread) {
    threads.emplace_back([&, thread] {
      Workspace own;
      Bytes back(kBlocks);
      for (int round = 0; round < 8; ++round) {
        const Bytes page = make_page(kKinds[std::size_t(round) % kKinds.size()], kBlocks, thread);
        good[thread] += codec.decompress(stored(codec, page, own), back, own) && back == page ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, (std::array{8, 8, 8, 8}));
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecConformance,
                         ::testing::Values("none", "lz4", "lz4-16", "zstd-huffman", "zstd-1", "zstd-3", "zstd-19",
                                           "shuffle2+lz4", "shuffle2+zstd-1", "shuffle4+zstd-huffman",
                                           "shuffle8+zstd-3"),
                         [](const auto& tested) {
                           std::string name(tested.param);
                           std::ranges::replace(name, '-', '_');
                           std::ranges::replace(name, '+', '_');
                           return name;
                         });

TEST(EveryCodec, BringsPagesBack) {
  Workspace workspace;
  for (const Codec* codec : all_codecs()) {
    SCOPED_TRACE(codec->name());
    for (const Kind kind : kKinds) {
      for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kSmall, std::size_t{70'001}}) {
        const Bytes page = make_page(kind, bytes);
        Bytes back(bytes);
        ASSERT_TRUE(codec->decompress(stored(*codec, page, workspace), back, workspace));
        ASSERT_EQ(back, page) << kind_name(kind) << ", " << bytes << " bytes";
      }
    }
  }
}

// By default the library decodes a second frame, skips a skippable one, and hands a frame of an old
// version to that version's decoder.
TEST(Zstd, APageIsOneFrameOfTodaysFormat) {
  const Codec& codec = *parse_setting("zstd-3")->codec;
  Workspace workspace;
  const Bytes page = make_page(Kind::half, kSmall);
  const Bytes good = stored(codec, page, workspace), empty = stored(codec, {}, workspace);
  const Bytes skipped{std::byte{0x50}, std::byte{0x2a}, std::byte{0x4d}, std::byte{0x18}, {}, {}, {}, {}};
  Bytes back(kSmall);
  for (const Bytes& more : {empty, skipped}) {
    Bytes longer = good, led = more;
    longer.insert(longer.end(), more.begin(), more.end());
    led.insert(led.end(), good.begin(), good.end());
    EXPECT_FALSE(codec.decompress(longer, back, workspace));
    EXPECT_FALSE(codec.decompress(led, back, workspace));
  }
  for (int version = 0x22; version < 0x28; ++version) {
    Bytes old = good;
    old[0] = std::byte(version);
    const Status read = codec.decompress(old, back, workspace);
    ASSERT_FALSE(read);
    EXPECT_NE(read.error().message.find("not one whole frame"), std::string::npos) << read.error().message;
  }
}

TEST(EveryCodec, TheLargestPagesComeBack) {
  constexpr std::size_t kLargest = std::size_t{64} << 20;
  const Bytes page = make_page(Kind::half, kLargest);
  Bytes out(kLargest), back(kLargest);
  Workspace workspace;
  for (const std::string_view name : {"lz4", "zstd-1", "shuffle4+zstd-huffman"}) {
    const Codec& codec = *parse_setting(name)->codec;
    const auto written = codec.compress(page, out, workspace);
    ASSERT_TRUE(written && *written) << name;
    ASSERT_TRUE(codec.decompress(std::span(out).first(**written), back, workspace)) << name;
    EXPECT_EQ(back, page) << name;
  }
}

}  // namespace
}  // namespace vmem::compress
