// A tier below host memory whose transfers wait in several queues, as those of nodes do.
#include <algorithm>
#include <vector>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class Queues : public MoverTest {
 protected:
  Region& filled(const MachineShape& wanted, std::uint32_t pages) {
    start(wanted);
    user = &actor();
    Region& region = allocate(pages);
    for (std::uint32_t i = 0; i < region.page_count; ++i) write_to_the_end(*user, writing(region, i), 1);
    settle();
    return region;
  }
  bool only_below(const Region& region, std::uint32_t i) const {
    return below(region, i) && !in_host(region, i) && page(region, i).frame == kNoFrame;
  }
  std::uint32_t first_below(const Region& region) const {
    std::uint32_t i = 0;
    while (i < region.page_count && !only_below(region, i)) ++i;
    EXPECT_LT(i, region.page_count) << "no page is only below";
    return i;
  }
  Actor* user = nullptr;
};

// Pages of 16 MiB, of which four are in flight at most.
TEST_F(Queues, AQueueThatDoesNotMoveHoldsUpNoOther) {
  Region& region =
      filled({.hbm_pages = 96, .host_pages = 200, .spill_pages = 224, .page_bytes = 8 * kPageBytes}, 96 + 200 + 8 * 12);
  spill->queues = 2;
  const std::uint32_t first = first_below(region);
  const auto queue_of = [&](std::uint32_t i) { return spill->queue(page(region, i).spilled->slot); };
  std::vector<std::uint32_t> moving, stuck;
  for (std::uint32_t i = first; i < first + 12; ++i) {
    ASSERT_TRUE(only_below(region, i));
    (queue_of(i) == 0 ? moving : stuck).push_back(i);
  }
  ASSERT_GE(moving.size(), 4u);
  ASSERT_GE(stuck.size(), 4u);
  spill->held_queue = 1;
  prefetch(reading(region, first, 12));
  const auto came = [&](std::uint32_t i) { return !only_below(region, i); };
  EXPECT_TRUE(step_until([&] { return std::ranges::all_of(moving, came); }));
  EXPECT_TRUE(std::ranges::none_of(stuck, came));
  spill->let_go();
  EXPECT_TRUE(step_until([&] { return std::ranges::all_of(stuck, came); }));
}

TEST_F(Queues, ALoadThatWasReadAheadIsHurriedOnceSomebodyWaitsForIt) {
  Region& region = filled({.hbm_pages = 4, .host_pages = 8, .spill_pages = 16}, 16);
  const std::uint32_t first = first_below(region);
  std::vector<bool> ahead;
  spill->on_submit = [&](const tiers::Transfer& transfer) { ahead.push_back(transfer.ahead); };
  spill->hold_back(Direction::load);
  prefetch(reading(region, first));
  steps();
  EXPECT_EQ(ahead, std::vector{true});
  EXPECT_TRUE(spill->hurried.empty());
  const auto waiting = begin(*user, reading(region, first));
  steps();
  EXPECT_EQ(spill->hurried, std::vector{page(region, first).spilled->transfer});
  const auto also_waiting = begin(*user, reading(region, first + 1));
  steps();
  EXPECT_EQ(ahead, (std::vector{true, false})) << "somebody waits for this one from the start";
  EXPECT_EQ(spill->hurried.size(), 1u);
  spill->let_go();
  for (Acquire* const each : {waiting.get(), also_waiting.get()}) {
    ASSERT_TRUE(complete(*each));
    release(*user, each->range);
  }
}

}  // namespace
}  // namespace vmem::migration
