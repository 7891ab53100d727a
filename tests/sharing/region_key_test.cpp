#include "sharing/region_key.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace vmem::sharing {
namespace {

std::vector<std::byte> some_page() {
  std::vector<std::byte> page(4096);
  for (std::size_t i = 0; i < page.size(); ++i) page[i] = std::byte(i * 7);
  return page;
}
constexpr SharedPage kThis{.serial = pagetable::Serial{3}, .bytes = 4096, .page = 2};

TEST(RegionKey, ProvesThePageUnderTheSameKeyOnly) {
  const RegionKey publisher = *RegionKey::create();
  const RegionKey reader = *RegionKey::of(publisher.bytes());
  const RegionKey stranger = *RegionKey::create();
  auto page = some_page();
  const auto tag = publisher.tag(page, kThis);
  EXPECT_EQ(reader.tag(page, kThis), tag);
  EXPECT_TRUE(reader.proves(page, kThis, tag));
  EXPECT_FALSE(stranger.proves(page, kThis, tag));
}

TEST(RegionKey, APageThatIsDamagedLaterGetsNoTagThatFits) {
  const RegionKey publisher = *RegionKey::create();
  const RegionKey reader = *RegionKey::of(publisher.bytes());
  std::vector<std::byte> page(kThis.bytes, std::byte{1});
  EXPECT_FALSE(publisher.known_tag(kThis.page));
  const auto tag = publisher.tag(page, kThis);
  ASSERT_TRUE(reader.proves(page, kThis, tag));
  EXPECT_EQ(reader.known_tag(kThis.page), tag);
  page[7] = std::byte{2};
  EXPECT_EQ(publisher.tag(page, kThis), tag);
  EXPECT_FALSE(reader.proves(page, kThis, tag));
  EXPECT_EQ(reader.known_tag(kThis.page), tag);
  EXPECT_FALSE(reader.known_tag(kThis.page + 1));
}

// A reader compares its bytes of an earlier version with the page.
TEST(RegionKey, TheTagOfOtherBytesIsNotTakenForThePages) {
  const RegionKey reader = *RegionKey::create();
  const std::vector<std::byte> earlier(kThis.bytes, std::byte{1});
  auto page = some_page();
  const auto compared = reader.tag_of(earlier, kThis);
  EXPECT_FALSE(reader.known_tag(kThis.page));
  EXPECT_NE(reader.tag(page, kThis), compared);
  EXPECT_EQ(reader.tag_of(page, kThis), reader.known_tag(kThis.page));
}

TEST(RegionKey, NoByteAndNoOtherPagePassesForIt) {
  const RegionKey key = *RegionKey::create();
  auto page = some_page();
  const auto tag = key.tag(page, kThis);
  for (const std::size_t at : {std::size_t{0}, std::size_t{2047}, std::size_t{4095}}) {
    page[at] ^= std::byte{1};
    EXPECT_FALSE(key.proves(page, kThis, tag)) << at;
    page[at] ^= std::byte{1};
  }
  SharedPage other = kThis;
  other.page = 3;
  EXPECT_FALSE(key.proves(page, other, tag));
  other = kThis;
  other.serial = pagetable::Serial{4};
  EXPECT_FALSE(key.proves(page, other, tag));
}

}  // namespace
}  // namespace vmem::sharing
