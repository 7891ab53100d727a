#include "compress/registry.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "compress/pages.hpp"

namespace vmem::compress {
namespace {

using ::testing::HasSubstr;

std::string refusal(std::string_view name) {
  const auto setting = parse_setting(name);
  EXPECT_FALSE(setting) << name;
  if (setting) return "";
  EXPECT_EQ(setting.error().status, VMEM_ERROR_INVALID_OPTION);
  return setting.error().message;
}

// Codec ids are on disks since the first version: a change makes stored pages unreadable.
TEST(Registry, IdsKeepTheirMeaning) {
  const std::map<int, std::string_view> known{{0, "none"},
                                              {1, "lz4"},
                                              {2, "lz4-2"},
                                              {16, "lz4-16"},
                                              {31, "zstd-huffman"},
                                              {32, "zstd-1"},
                                              {34, "zstd-3"},
                                              {50, "zstd-19"},
                                              {65, "shuffle2+lz4"},
                                              {95, "shuffle2+zstd-huffman"},
                                              {129, "shuffle4+lz4"},
                                              {162, "shuffle4+zstd-3"},
                                              {242, "shuffle8+zstd-19"}};
  for (const auto& [id, name] : known) {
    const auto codec = find(CodecId(id));
    ASSERT_TRUE(codec) << id;
    EXPECT_EQ((*codec)->name(), name);
  }
}

TEST(Registry, EveryCodecHasAnIdAndANameOfItsOwn) {
  std::set<CodecId> ids;
  std::set<std::string_view> names;
  for (const Codec* codec : all_codecs()) {
    ids.insert(codec->id());
    names.insert(codec->name());
    EXPECT_EQ(*find(codec->id()), codec);
    EXPECT_EQ(parse_setting(codec->name())->codec, codec);
  }
  EXPECT_EQ(ids.size(), all_codecs().size());
  EXPECT_EQ(names.size(), all_codecs().size());
  EXPECT_EQ(all_codecs().size(), 1 + 4 * (16 + 1 + 19));
}

TEST(Registry, IdsThatNobodyHasAreRefused) {
  for (const int id : {17, 30, 51, 63, 64, 128, 192, 255}) {
    const auto codec = find(CodecId(id));
    ASSERT_FALSE(codec) << id;
    EXPECT_EQ(codec.error().status, VMEM_ERROR_UNSUPPORTED);
    EXPECT_THAT(codec.error().message, HasSubstr("no codec has the id " + std::to_string(id)));
  }
}

TEST(Registry, ZstdAloneIsItsDefaultLevelAndAutoIsNoCodec) {
  EXPECT_EQ(parse_setting("zstd")->codec->name(), "zstd-3");
  EXPECT_EQ(parse_setting("shuffle4+zstd")->codec->name(), "shuffle4+zstd-3");
  EXPECT_EQ(parse_setting("auto")->codec, nullptr);
}

TEST(Registry, ARefusalSaysWhatWasAskedWhatThereIsAndWhatIsNearest) {
  const std::string message = refusal("zstd-20");
  EXPECT_THAT(message, HasSubstr("there is no codec 'zstd-20'"));
  EXPECT_THAT(message, HasSubstr("auto, none, lz4 and lz4-2 to lz4-16, zstd and zstd-1 to zstd-19, zstd-huffman"));
  EXPECT_THAT(message, HasSubstr("shuffle2+, shuffle4+ or shuffle8+"));
  EXPECT_THAT(refusal("lzz4"), HasSubstr("the nearest is lz4"));
  EXPECT_THAT(refusal("shufle4+lz4"), HasSubstr("the nearest is shuffle4+lz4"));
  EXPECT_THAT(refusal("atuo"), HasSubstr("the nearest is auto"));
  EXPECT_THAT(refusal("LZ4"), HasSubstr("the nearest is lz4"));
}

TEST(Registry, WhatLooksLikeANameIsNone) {
  for (const std::string_view name : {"", " lz4", "lz4-1", "lz4-17", "zstd-0", "zstd--1", "zstd-03", "shuffle2+none",
                                      "shuffle3+lz4", "shuffle2+", "shuffle2+shuffle4+lz4", "shuffle2+auto", "+zstd"}) {
    EXPECT_THAT(refusal(name), HasSubstr("there is no codec '" + std::string(name) + "'"));
  }
}

}  // namespace
}  // namespace vmem::compress
