#include "runtime/suballocator/size_classes.hpp"

#include <gtest/gtest.h>

namespace vmem::runtime {
namespace {

TEST(SizeClasses, EverySizeGetsTheSmallestBlockThatHoldsIt) {
  for (std::size_t bytes = 1; bytes <= std::size_t{1} << 20; ++bytes) {
    const std::uint32_t size_class = class_of(bytes);
    ASSERT_LT(size_class, kClasses) << bytes;
    ASSERT_GE(kSizeClasses[size_class].block_bytes, bytes);
    if (size_class > 0) {
      ASSERT_LT(kSizeClasses[size_class - 1].block_bytes, bytes);
    }
  }
}

TEST(SizeClasses, ExcessBeyondTheAlignmentIsAtMostAnEighthAndFitsItsField) {
  for (std::size_t bytes = 1; bytes <= std::size_t{1} << 20; ++bytes) {
    const std::size_t block = kSizeClasses[class_of(bytes)].block_bytes;
    const std::size_t aligned = (bytes + kUnitBytes - 1) / kUnitBytes * kUnitBytes;
    ASSERT_LE((block - aligned) * 8, block) << bytes;
    ASSERT_LE(block - bytes, kMostExcessBytes) << bytes;
    if (bytes > 2048) {
      ASSERT_LE((block - bytes) * 8, block) << bytes;
    }
  }
}

TEST(SizeClasses, SlabsAreUsedToSevenEighths) {
  for (const SizeClass& size_class : kSizeClasses) {
    const std::size_t slab = size_class.granules * kGranuleBytes;
    EXPECT_GE(std::size_t{size_class.blocks} * size_class.block_bytes * 8, slab * 7) << size_class.block_bytes;
    EXPECT_LE(size_class.blocks, kMostBlocks);
    EXPECT_EQ(size_class.block_bytes % kUnitBytes, 0u);
  }
}

}  // namespace
}  // namespace vmem::runtime
