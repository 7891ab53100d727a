// The exact bytes of shuffled pages on disks and wires, which other versions have to read.
#include "compress/shuffle.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>

#include "compress/pages.hpp"
#include "compress/registry.hpp"

namespace vmem::compress {
namespace {

Bytes bytes(std::initializer_list<int> values) {
  Bytes made;
  for (const int value : values) made.push_back(std::byte(value));
  return made;
}

TEST(ShuffleFormat, PlanesAndTheRestThatIsNoElementFollowEachOther) {
  const Codec& codec = *parse_setting("shuffle2+lz4")->codec;
  const Bytes page = bytes({1, 2, 3, 4, 5, 6, 7});
  const Bytes as_stored = bytes({3, 0, 0, 0x80, 1, 3, 5, 3, 0, 0, 0x80, 2, 4, 6, 7});
  Workspace workspace;
  Bytes out(100), back(page.size());
  out.resize(codec.compress(page, out, workspace)->value());
  EXPECT_EQ(out, as_stored);
  ASSERT_TRUE(codec.decompress(as_stored, back, workspace));
  EXPECT_EQ(back, page);
}

TEST(ShuffleFormat, APlaneThatShrinksHasItsStoredLengthBeforeIt) {
  const Codec& lz4 = *parse_setting("lz4")->codec;
  const Codec& codec = *parse_setting("shuffle4+lz4")->codec;
  const std::size_t elements = Shuffle::kBlockBytes / 4;
  Bytes page = make_page(Kind::noise, Shuffle::kBlockBytes);
  for (std::size_t i = 3; i < page.size(); i += 4) page[i] = std::byte{0x3f};
  Workspace workspace;
  Bytes out(page.size());
  out.resize(codec.compress(page, out, workspace)->value());

  Bytes plane(elements);
  plane.resize(lz4.compress(Bytes(elements, std::byte{0x3f}), plane, workspace)->value());
  const std::size_t last = 3 * (4 + elements);
  ASSERT_EQ(out.size(), last + 4 + plane.size());
  EXPECT_EQ(Bytes(out.begin() + std::ptrdiff_t(last), out.begin() + std::ptrdiff_t(last) + 4),
            bytes({int(plane.size() & 0xff), int(plane.size() >> 8), 0, 0}));
  EXPECT_TRUE(std::ranges::equal(std::span(out).subspan(last + 4), plane));
}

TEST(ShuffleFormat, ABlockIsAQuarterOfAMiB) {
  EXPECT_EQ(Shuffle::kBlockBytes, std::size_t{256} << 10);
  const Codec& codec = *parse_setting("shuffle2+zstd-1")->codec;
  const Bytes page = make_page(Kind::noise, 2 * Shuffle::kBlockBytes + 2);
  Bytes out(page.size() + 100);
  Workspace workspace;
  EXPECT_EQ(codec.compress(page, out, workspace)->value(), page.size() + 6 * 4) << "two blocks and one of an element";
}

// compress never writes a plane whose stated length is not smaller than the plane.
TEST(ShuffleFormat, LengthsThatCannotBeAreRefused) {
  const Codec& codec = *parse_setting("shuffle2+lz4")->codec;
  Workspace workspace;
  Bytes back(6);
  for (const Bytes& wrong : {bytes({2, 0, 0, 0x80, 1, 3, 3, 0, 0, 0x80, 2, 4, 6}), bytes({3, 0, 0, 0, 1, 3, 5}),
                             bytes({0, 0, 0, 0, 3, 0, 0, 0x80, 2, 4, 6}), bytes({0xff, 0xff, 0xff, 0xff, 1, 3, 5})}) {
    const Status read = codec.decompress(wrong, back, workspace);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().message.substr(0, 33), "shuffle2+lz4: no plane of 3 bytes");
  }
}

}  // namespace
}  // namespace vmem::compress
