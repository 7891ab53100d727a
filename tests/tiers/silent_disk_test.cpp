// A disk that never answers: the tier ends without waiting for it, and a request's memory is
// neither touched nor freed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tiers/disk_fixture.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

// Accepts requests and never completes them.
class SilentQueue final : public IoQueue {
 public:
  std::uint32_t depth() const override { return 8; }
  void push(const Io&) override {}
  Status wait(std::vector<IoResult>&, std::chrono::microseconds longest) override {
    std::unique_lock lock(mutex_);
    woken_.wait_for(lock, longest, [&] { return wakes_ != seen_; });
    seen_ = wakes_;
    return {};
  }
  void wake() override {
    const std::lock_guard lock(mutex_);
    ++wakes_;
    woken_.notify_one();
  }
  std::string describe() const override { return "silent"; }

 private:
  std::mutex mutex_;
  std::condition_variable woken_;
  std::uint64_t wakes_ = 0, seen_ = 0;
};

struct Silent {
  Silent() {
    DiskTier::Config config;
    config.directories = {{kTestDirectory, 8 * kPage}};
    config.make_queue = [](const std::vector<int>&) -> Result<std::unique_ptr<IoQueue>> {
      return std::make_unique<SilentQueue>();
    };
    config.answer_wait = std::chrono::milliseconds(100);
    config.on_ready = [this] { ++ready; };
    tier = *DiskTier::create(std::move(config));
    memory = std::aligned_alloc(4096, kPage);
    std::memset(memory, 7, kPage);
  }
  SlotId slot() const {
    for (;;) {
      const auto grant = *tier->allocate(kPage);
      if (grant.grant == Grant::granted) return grant.slot;
      std::this_thread::yield();
    }
  }
  std::atomic<int> ready{0};
  std::unique_ptr<DiskTier> tier;
  void* memory = nullptr;
};

TEST(SilentDisk, FinishGivesUpAfterItsTimeAndSaysSo) {
  Silent silent;
  Transfer transfer;
  transfer.version = 1;
  transfer.slot = silent.slot();
  transfer.host = static_cast<std::byte*>(silent.memory);
  transfer.bytes = kPage;
  transfer.direction = Direction::store;
  ASSERT_TRUE(silent.tier->submit({&transfer, 1}));
  EXPECT_FALSE(silent.tier->quarantined());
  EXPECT_EQ(silent.tier->where(transfer.slot), kTestDirectory);
  EXPECT_EQ(silent.tier->finish(), Finished::quarantined);
  EXPECT_TRUE(silent.tier->quarantined());
  EXPECT_EQ(silent.tier->finish(), Finished::quarantined) << "at once";
  std::vector<Completion> completions;
  EXPECT_TRUE(silent.tier->poll(completions));
  EXPECT_TRUE(completions.empty());
  // Leaks the tier, as its owner does: the system may write to its memory at any time.
  (void)silent.tier.release();
}

TEST(SilentDisk, ATierWithoutRequestsEndsAtOnce) {
  Silent silent;
  (void)silent.slot();
  EXPECT_EQ(silent.tier->finish(), Finished::all_ended);
  EXPECT_FALSE(silent.tier->quarantined());
  silent.tier.reset();
  std::free(silent.memory);
}

}  // namespace
}  // namespace vmem::tiers
