#include "tiers/io/request_size.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace vmem::tiers {
namespace {

class RequestSize : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(queue_); }
  void TearDown() override { std::filesystem::remove_all(queue_); }
  void write(const char* name, const char* text) const { std::ofstream(queue_ + "/" + name) << text << '\n'; }
  const std::string queue_ = ::testing::TempDir() + "vmem-queue-" + std::to_string(::getpid());
};

constexpr std::uint32_t kMiB = 1u << 20;

TEST_F(RequestSize, IsWhatTheDeviceTakesUncut) {
  write("max_segments", "254");
  write("max_sectors_kb", "4096");
  EXPECT_EQ(uncut_request_bytes(queue_, kMiB), 1016u << 10);
  write("max_segments", "127");
  EXPECT_EQ(uncut_request_bytes(queue_, kMiB), 508u << 10);
  write("max_sectors_kb", "128");
  EXPECT_EQ(uncut_request_bytes(queue_, kMiB), 128u << 10);
}

TEST_F(RequestSize, IsNeverTiny) {
  write("max_segments", "1");
  write("max_sectors_kb", "4");
  EXPECT_EQ(uncut_request_bytes(queue_, kMiB), 64u << 10);
  EXPECT_EQ(uncut_request_bytes(queue_, 4096), 4096u);
}

TEST_F(RequestSize, IsTheMostWhereNothingIsSaid) {
  EXPECT_EQ(uncut_request_bytes(queue_, kMiB), kMiB);
  write("max_segments", "65535");
  EXPECT_EQ(uncut_request_bytes(queue_, kMiB), kMiB);
  EXPECT_EQ(uncut_request_bytes(-1, kMiB), kMiB);
}

TEST(EvenRequests, AreOfAboutOneSize) {
  EXPECT_EQ(even_request_bytes(2u << 20, 1016u << 10), 700416u);
  EXPECT_EQ(even_request_bytes(8u << 20, kMiB), kMiB);
  EXPECT_EQ(even_request_bytes(4096, kMiB), 4096u);
  EXPECT_EQ(even_request_bytes(0, kMiB), 0u);
  for (const std::uint64_t bytes : {4096ull, 2101248ull, 8392704ull, 33558528ull}) {
    const std::uint32_t each = even_request_bytes(bytes, 1016u << 10);
    EXPECT_EQ(each % 4096, 0u);
    EXPECT_LE(each, 1016u << 10);
    EXPECT_EQ((bytes + each - 1) / each, (bytes + (1016u << 10) - 1) / (1016u << 10)) << bytes;
  }
}

}  // namespace
}  // namespace vmem::tiers
