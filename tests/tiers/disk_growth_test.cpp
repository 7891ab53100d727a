// File systems that refuse to give space. The program's fallocate is replaced: it fails when a test
// says so.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "tiers/disk_fixture.hpp"

namespace {

std::atomic<int> failing_allocations{0};  // so many of the next ones, with EIO

bool fails(int mode) {
  int left = failing_allocations.load();
  while (mode == 0 && left > 0) {
    if (failing_allocations.compare_exchange_weak(left, left - 1)) return true;
  }
  return false;
}

}  // namespace

extern "C" int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (!fails(mode)) return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, bytes));
  errno = EIO;
  return -1;
}

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{64} << 10;

// Until it is granted, refused or full.
Result<SlotGrant> ask_until_answered(DiskFixture& disk) {
  for (;;) {
    auto grant = disk.tier().allocate(kPage);
    if (!grant || grant->grant != Grant::later) return grant;
    disk.wait_until_ready();
  }
}

TEST(DiskGrowth, WhereOneDirectoryFailsToGrowAnotherOneGrows) {
  DiskFixture disk(kPage, 16 * kPage, uring(), 2);
  failing_allocations = 1;
  const auto grant = ask_until_answered(disk);
  ASSERT_TRUE(grant) << grant.error().message;
  EXPECT_EQ(grant->grant, Grant::granted);
  EXPECT_EQ(failing_allocations, 0);
  EXPECT_EQ(disk.tier().usage().budget_bytes, 8 * kPage) << "of the directory that is left";
  for (int i = 1; i < 8; ++i) EXPECT_TRUE(ask_until_answered(disk)) << "an old failure says nothing of now";
  EXPECT_EQ(ask_until_answered(disk)->grant, Grant::full);
}

TEST(DiskGrowth, WhereAllDirectoriesFailToGrowTheReasonIsSaid) {
  DiskFixture disk(kPage, 16 * kPage, uring(), 2);
  failing_allocations = 2;
  const auto refused = ask_until_answered(disk);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().native, EIO);
}

}  // namespace
}  // namespace vmem::tiers
