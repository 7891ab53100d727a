// The toy tier passes the suite of all tiers, and a mover uses it as it uses disks.
#include "toy_tier.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>

#include "migration/mover_harness.hpp"
#include "tiers/tier_conformance.hpp"

namespace vmem::examples {
namespace {

using tiers::Completion;
using tiers::Direction;
using tiers::kTierPage;
using tiers::Outcome;
using tiers::SlotId;
using tiers::Transfer;

// What TierConformance asks for: the tier, and two memories that its transfers name.
class ToyUnderTest {
 public:
  tiers::Tier& tier() { return tier_; }
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
  void wait_until_ready() {}  // for tiers whose allocate answers `later`
  void aim(Transfer& transfer, std::size_t i) { transfer.host = memories_[i].data(); }
  void fill(std::size_t i, unsigned char value) { std::ranges::fill(memories_[i], std::byte{value}); }
  bool holds(std::size_t i, unsigned char value) {
    return std::ranges::all_of(memories_[i], [&](std::byte each) { return each == std::byte{value}; });
  }

  // Runs one transfer to its end.
  Completion move(Direction direction, SlotId slot, std::size_t memory, std::uint64_t version) {
    Transfer transfer{.version = version, .slot = slot, .bytes = kTierPage, .direction = direction};
    aim(transfer, memory);
    EXPECT_TRUE(tier_.submit({&transfer, 1}));
    std::vector<Completion> completions;
    while (completions.empty()) {
      std::this_thread::yield();
      EXPECT_TRUE(tier_.poll(completions));
    }
    EXPECT_EQ(completions.front().id, transfer.id);
    return completions.front();
  }

 private:
  // Of multiples of 4096 bytes; a tier of files would also want them aligned.
  std::array<std::vector<std::byte>, 2> memories_{std::vector<std::byte>(kTierPage), std::vector<std::byte>(kTierPage)};
  ToyTier tier_{8 * kTierPage, [] {}};
};

TEST(ToyTier, APageIsLoadedOnlyAsTheVersionThatWasStored) {
  ToyUnderTest toy;
  const SlotId slot = toy.tier().allocate(kTierPage)->slot;
  EXPECT_EQ(toy.move(Direction::load, slot, 1, 5).outcome, Outcome::lost) << "nothing was stored";
  toy.fill(0, 7);
  ASSERT_EQ(toy.move(Direction::store, slot, 0, 5).outcome, Outcome::done);
  EXPECT_EQ(toy.move(Direction::load, slot, 1, 4).outcome, Outcome::lost) << "an older version";
  EXPECT_EQ(toy.move(Direction::load, slot, 1, 5).outcome, Outcome::done);
  EXPECT_TRUE(toy.holds(1, 7));
}

// A mover on the emulated machine: four pages in HBM, eight in host memory, the others in the tier.
class BelowHost : public migration::MoverTest {
 protected:
  ToyTier toy_{16 * migration::kPageBytes, [] {}};  // the test steps the mover: no need to wake it
};

TEST_F(BelowHost, PagesThatHostMemoryHasNoRoomForComeBackFromTheToyTier) {
  below_host = &toy_;
  start({.hbm_pages = 4, .host_pages = 8});
  migration::Actor& user = actor();
  constexpr std::uint32_t kPages = 16;
  migration::Region& region = allocate(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) write_to_the_end(user, migration::writing(region, i), std::uint8_t(i));
  settle();
  EXPECT_GE(toy_.usage().used_bytes, (kPages - 4 - 8) * migration::kPageBytes);
  const std::uint64_t recalled = inside->counters().recalled_bytes;
  for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(user, region, i, std::uint8_t(i));
  EXPECT_GT(inside->counters().recalled_bytes, recalled) << "no page came from the tier";
}

}  // namespace
}  // namespace vmem::examples

namespace vmem::tiers {
INSTANTIATE_TYPED_TEST_SUITE_P(Toy, TierConformance, examples::ToyUnderTest);
}  // namespace vmem::tiers
