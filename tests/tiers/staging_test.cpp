#include "tiers/disk/staging.hpp"

#include <gtest/gtest.h>

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(Staging, BuffersAreMadeOnceAndUsedAgain) {
  Staging staging(8 * kMiB);
  Staging::Buffer first = staging.take(kMiB);
  ASSERT_TRUE(first);
  EXPECT_EQ(std::uintptr_t(first.data()) % 4096, 0u);
  const std::byte* const memory = first.data();
  first.reset();
  for (int i = 0; i < 100; ++i) {
    Staging::Buffer again = staging.take(kMiB);
    EXPECT_EQ(again.data(), memory);
  }
  EXPECT_EQ(staging.made_bytes(), kMiB);
}

TEST(Staging, NoMoreIsMadeThanWasSaid) {
  Staging staging(8 * kMiB);
  std::vector<Staging::Buffer> taken;
  for (Staging::Buffer each = staging.take(kMiB); each; each = staging.take(kMiB)) taken.push_back(std::move(each));
  EXPECT_EQ(taken.size(), 8u);
  EXPECT_EQ(staging.out(), 8u);
  taken.pop_back();
  EXPECT_TRUE(staging.take(kMiB));
}

TEST(Staging, FourBuffersOfAnySizeCanBeHadAndSmallerOnesMakeRoom) {
  Staging staging(8 * kMiB);
  std::vector<Staging::Buffer> taken;
  for (int i = 0; i < 8; ++i) taken.push_back(staging.take(kMiB));
  taken.clear();
  for (Staging::Buffer each = staging.take(16 * kMiB); each; each = staging.take(16 * kMiB))
    taken.push_back(std::move(each));
  EXPECT_EQ(taken.size(), 4u);
  EXPECT_LE(staging.made_bytes(), 64 * kMiB);
}

}  // namespace
}  // namespace vmem::tiers
