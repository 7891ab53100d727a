// The queue of a disk tier fails as a whole.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tiers/disk_fixture.hpp"
#include "tiers/scripted_disk.hpp"

namespace vmem::tiers {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{128} << 10;

// A queue over a scripted disk that fails once as a whole, in the wait after `fails` became true.
class QueueThatFails final : public IoQueue {
 public:
  QueueThatFails(ScriptedDisk::Decide decide, bool& fails) : disk_(std::move(decide)), fails_(fails) {}
  std::uint32_t depth() const override { return disk_.depth(); }
  void push(const Io& io) override { disk_.push(io); }
  Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) override {
    VMEM_TRY(disk_.wait(ended, longest));
    if (std::exchange(fails_, false)) return fail(VMEM_ERROR_DRIVER, "the queue failed", EBADF);
    return {};
  }
  void wake() override { disk_.wake(); }
  std::string describe() const override { return "fails"; }

 private:
  ScriptedDisk disk_;
  bool& fails_;
};

// The queue fails while part of a page waits to be resent: the transfer ends with the queue's
// error, and later transfers are served.
TEST(DiskFaults, AQueueThatFailsWhileARequestWaitsToBeSentAgainEndsItsTransfer) {
  for (const Fate& fate : {Fate{.error = EAGAIN}, Fate{.moves_bytes = 4096}}) {
    for (const Direction failing : {Direction::store, Direction::load}) {
      bool fails = false;
      int left = 0;  // requests up to the one that must be resent
      DiskFixture disk(kPage, 2 * kPage, [&](const std::vector<int>&) -> Result<std::unique_ptr<IoQueue>> {
        return std::make_unique<QueueThatFails>(
            [&](const Io&) {
              if (left == 0 || --left != 0) return Fate{};
              fails = true;
              return fate;
            },
            fails);
      });
      const SlotId slot = disk.slot();
      disk.fill(0, 1);
      const auto stored = failing == Direction::load ? disk.move(Direction::store, slot, 0, 1).outcome : Outcome::done;
      ASSERT_EQ(stored, Outcome::done);
      left = 1;
      const Completion failed = disk.move(failing, slot, 0, 1);
      ASSERT_EQ(failed.outcome, Outcome::failed);
      ASSERT_NE(failed.error.message.find("the queue failed"), std::string::npos) << failed.error.message;
      ASSERT_EQ(disk.move(Direction::store, slot, 0, 2).outcome, Outcome::done);
      ASSERT_EQ(disk.move(Direction::load, slot, 1, 2).outcome, Outcome::done);
      ASSERT_TRUE(disk.holds(1, 1));
    }
  }
}

}  // namespace
}  // namespace vmem::tiers
