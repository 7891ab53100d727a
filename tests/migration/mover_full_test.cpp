// Host memory and all below it full: what malloc committed stays usable through the free frames of HBM.
#include <algorithm>
#include <numeric>
#include <random>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

enum class Order { forward, backward, random, strided, hot_set };

std::vector<std::uint32_t> visits(Order order, std::uint32_t pages) {
  std::vector<std::uint32_t> all(pages);
  std::iota(all.begin(), all.end(), 0u);
  std::mt19937 random(pages);
  switch (order) {
    case Order::forward:
      break;
    case Order::backward:
      std::ranges::reverse(all);
      break;
    case Order::random:
      std::ranges::shuffle(all, random);
      break;
    case Order::strided:
      std::ranges::stable_sort(all, {}, [](std::uint32_t page) { return page % 7; });
      break;
    case Order::hot_set:
      for (std::uint32_t i = 0; i < pages; ++i) all.insert(all.begin() + 2 * i, i % std::min(pages, 3u));
      break;
  }
  return all;
}

class MoverFull : public MoverTest {
 protected:
  // From the last size that an allocation accepts, by the processor first: HBM stays empty then.
  void every_page_serves_in_every_order(const MachineShape& machine) {
    start(machine);
    Actor& thread = actor();
    std::uint32_t pages = 1;
    while (auto region = try_allocate(pages)) {
      ASSERT_TRUE(free(**region));
      steps();
      ++pages;
    }
    Region& region = allocate(--pages);
    std::vector<unsigned char> bytes(pages);
    for (std::uint32_t i = 0; i < pages; ++i) {
      bytes[i] = static_cast<unsigned char>(i + 1);
      const Status written = cpu_write(region, i, bytes[i]);
      ASSERT_TRUE(written) << "page " << i << " of " << pages << ": " << written.error().message;
    }
    for (const Order order : {Order::forward, Order::backward, Order::random, Order::strided, Order::hot_set}) {
      SCOPED_TRACE(::testing::Message() << "order " << int(order) << " of " << pages << " pages");
      for (const std::uint32_t i : visits(order, pages)) {
        expect_bytes(thread, region, i, bytes[i]);
        if (HasFatalFailure()) return;
        write_to_the_end(thread, writing(region, i), ++bytes[i]);
        check();
      }
      for (const std::uint32_t i : visits(order, pages)) {
        expect_stored(region, i, bytes[i]);
        if (HasFatalFailure()) return;
        ASSERT_TRUE(cpu_write(region, i, ++bytes[i]));
      }
    }
  }
};

TEST_F(MoverFull, PagesOfAFullMachineGoUpThroughFreeFrames) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 8, .spill_pages = 16});
}

TEST_F(MoverFull, WithTwoPagesOfHostMemory) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 2, .spill_pages = 12});
}

TEST_F(MoverFull, WithLentMemory) {
  every_page_serves_in_every_order({.hbm_pages = 6, .host_pages = 4, .spill_pages = 8, .lent_pages = 4});
}

TEST_F(MoverFull, WithLentMemoryAndNothingBelow) {
  every_page_serves_in_every_order({.hbm_pages = 6, .host_pages = 4, .lent_pages = 4});
}

TEST_F(MoverFull, WithNothingBelowHostMemory) { every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 8}); }

TEST_F(MoverFull, WithReadsStraightIntoFrames) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 4, .spill_pages = 12, .straight = true});
}

TEST_F(MoverFull, WithProtectedPages) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 4, .spill_pages = 12, .protect = true});
}

TEST_F(MoverFull, WithThePolicy) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 4, .spill_pages = 12, .real_policy = true});
}

TEST_F(MoverFull, AnAcquireWaitsForSlotsThatPagesArriveInAhead) {
  start({.hbm_pages = 8, .host_pages = 2, .spill_pages = 16});
  Actor& thread = actor();
  Region& region = allocate(12);
  for (std::uint32_t i = 0; i < 12; ++i) write_to_the_end(thread, writing(region, i), static_cast<unsigned char>(i));
  for (std::uint32_t i = 0; i < 12; ++i) evict_to_the_end(writing(region, i));
  spill->hold_back(tiers::Direction::load);
  prefetch(writing(region, 0, 2));
  steps();
  const auto wanted = begin(thread, writing(region, 2));
  steps();
  EXPECT_FALSE(wanted->done());
  spill->let_go();
  const Status served = complete(*wanted);
  ASSERT_TRUE(served) << served.error().message;
  release(thread, wanted->range);
  finish_work(thread);
  expect_bytes(thread, region, 2, 2);
}

}  // namespace
}  // namespace vmem::migration
