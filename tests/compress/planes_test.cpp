#include "compress/planes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "compress/guarded.hpp"
#include "compress/pages.hpp"

namespace vmem::compress {
namespace {

class PlanesOf : public ::testing::TestWithParam<std::size_t> {};

// Compares with the definition at odd addresses, for all element counts around the widths of vector
// loops.
TEST_P(PlanesOf, HoldTheBytesOfEachElementInOrder) {
  const std::size_t width = GetParam();
  for (std::size_t elements = 0; elements < 300; ++elements) {
    const Bytes page = make_page(Kind::noise, elements * width, elements);
    const Guarded in(page, Edge::end), room(elements * width, Edge::end);
    Planes planes{};
    for (std::size_t i = 0; i < width; ++i) planes[i] = room.bytes().data() + i * elements;
    split_planes(in.bytes().data(), elements, width, planes);
    for (std::size_t i = 0; i < elements * width; ++i) {
      ASSERT_EQ(room.bytes()[i % width * elements + i / width], page[i]) << elements << " elements, byte " << i;
    }
  }
}

TEST_P(PlanesOf, JoinToTheElementsAgain) {
  const std::size_t width = GetParam();
  for (const std::size_t elements : {0u, 1u, 15u, 16u, 17u, 33u, 1000u, 32'768u}) {
    const Bytes page = make_page(Kind::noise, elements * width);
    std::vector<std::unique_ptr<Guarded>> rooms;
    Planes planes{};
    ConstPlanes from{};
    for (std::size_t i = 0; i < width; ++i) {
      rooms.push_back(std::make_unique<Guarded>(elements, Edge::end));
      from[i] = planes[i] = rooms.back()->bytes().data();
    }
    split_planes(page.data(), elements, width, planes);
    const Guarded out(page.size(), Edge::end);
    join_planes(from, elements, width, out.bytes().data());
    EXPECT_TRUE(std::ranges::equal(out.bytes(), page)) << elements;
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PlanesOf, ::testing::Values(2, 4, 8));

}  // namespace
}  // namespace vmem::compress
