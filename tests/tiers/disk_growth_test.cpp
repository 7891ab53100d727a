// File systems that refuse to allocate space, or do not answer. Replaces the program's fallocate,
// which fails or blocks on request of a test.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

#include "tiers/disk_fixture.hpp"

namespace {

std::atomic<int> failing_allocations{0};  // number of next allocations to fail, with EIO

bool fails(int mode) {
  int left = failing_allocations.load();
  while (mode == 0 && left > 0) {
    if (failing_allocations.compare_exchange_weak(left, left - 1)) return true;
  }
  return false;
}

// Blocks the first allocation that passes while it is closed, until it opens.
class Gate {
 public:
  void close() {
    const std::lock_guard lock(mutex_);
    state_ = State::closed;
  }
  void open() {
    const std::lock_guard lock(mutex_);
    state_ = State::open;
    changed_.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex_);
    if (state_ != State::closed) return;
    state_ = State::blocks;
    changed_.notify_all();
    changed_.wait(lock, [&] { return state_ == State::open; });
  }
  void wait_until_it_blocks() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return state_ == State::blocks; });
  }

 private:
  enum class State { open, closed, blocks };
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::open;
};
Gate gate;

}  // namespace

extern "C" int fallocate(int file, int mode, off_t offset, off_t bytes) {
  if (mode == 0) gate.pass();
  if (!fails(mode)) return static_cast<int>(::syscall(SYS_fallocate, file, mode, offset, bytes));
  errno = EIO;
  return -1;
}

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{64} << 10;

// Repeats until the request is granted, refused or full.
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

TEST(DiskGrowth, ADirectoryThatDoesNotAnswerDelaysNoOther) {
  DiskFixture disk(kPage, 16 * kPage, uring(), 2);
  struct Opened {
    ~Opened() { gate.open(); }
  } before_the_tier_ends;
  gate.close();
  ASSERT_EQ(disk.tier().allocate(kPage)->grant, Grant::later);
  gate.wait_until_it_blocks();
  const auto granted = ask_until_answered(disk);
  ASSERT_TRUE(granted) << granted.error().message;
  ASSERT_EQ(granted->grant, Grant::granted) << "by the other directory";
  disk.fill(0, 7);
  EXPECT_EQ(disk.move(Direction::store, granted->slot, 0, 1).outcome, Outcome::done);
  EXPECT_EQ(disk.move(Direction::load, granted->slot, 1, 1).outcome, Outcome::done);
  EXPECT_TRUE(disk.holds(1, 7));
}

}  // namespace
}  // namespace vmem::tiers
