// Copies of one direction hold up the driver's page table updates. Which one, calls tell.
#include "migration/page/held_up_calls.hpp"

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

std::optional<Direction> after(HeldUpCalls& calls, int count, std::uint64_t took_us, bool loads, bool stores) {
  std::optional<Direction> said;
  for (int i = 0; i < count; ++i) {
    if (const auto each = calls.took(took_us, loads, stores)) said = each;
  }
  return said;
}

TEST(HeldUpCalls, CallsHeldUpBesideLoadsAloneTurnTheDirection) {
  HeldUpCalls calls;
  EXPECT_EQ(after(calls, 15, 1'000, true, false), std::nullopt);
  EXPECT_EQ(after(calls, 1, 1'000, true, false), Direction::load);
  EXPECT_EQ(after(calls, 100, 1'000, true, false), std::nullopt) << "loads make way already";
  EXPECT_EQ(after(calls, 16, 1'000, false, true), Direction::store);
}

TEST(HeldUpCalls, QuickCallsAndThoseBesideNoSuchCopiesTellNothing) {
  HeldUpCalls calls;
  EXPECT_EQ(after(calls, 100, 40, true, true), std::nullopt);
  EXPECT_EQ(after(calls, 100, 1'000, false, false), std::nullopt);
  EXPECT_EQ(after(calls, 100, 1'000, false, true), std::nullopt) << "stores make way already";
}

TEST(HeldUpCalls, CallsThatWaitForSomethingElseTellNothing) {
  HeldUpCalls calls;
  EXPECT_EQ(after(calls, 100, 50'000, true, false), std::nullopt);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(calls.took(i % 3 == 0 ? 1'000 : 40, true, false), std::nullopt) << "a third is not most";
  }
}

class LoadsHoldUp : public MoverTest {};

TEST_F(LoadsHoldUp, TheHostTierIsTold) {
  start({.hbm_pages = 20, .host_pages = 20});
  Region& region = allocate(20);
  for (std::uint32_t i = 0; i < 20; ++i) ASSERT_TRUE(cpu_write(region, i, 7));
  Actor& a = actor();
  faults->on_call([&](std::string_view call) {
    if (call == "cuMemSetAccess") now_us += 1'000;
  });
  ASSERT_TRUE(acquire(a, reading(region, 0, 10)));
  EXPECT_EQ(tier->yields, Direction::store);
  ASSERT_TRUE(acquire(a, reading(region, 10, 10)));
  faults->on_call(nullptr);
  EXPECT_EQ(tier->yields, Direction::load);
  release(a, reading(region, 0, 10));
  release(a, reading(region, 10, 10));
}

}  // namespace
}  // namespace vmem::migration
