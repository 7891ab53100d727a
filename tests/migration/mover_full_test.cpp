// Host memory and all tiers below are full: all committed memory stays usable through free frames.
#include "migration/mover_harness.hpp"
#include "visits.hpp"

namespace vmem::migration {
namespace {

using test::kOrders;
using test::Order;
using test::visits;

class MoverFull : public MoverTest {
 protected:
  // Allocates the largest region accepted. The CPU writes it first, so HBM stays empty.
  void every_page_serves_in_every_order(const MachineShape& machine, bool node_away = false) {
    start(machine);
    if (node_away) spill->away_beyond = true;
    Actor& thread = actor();
    std::uint32_t pages = 1;
    while (auto region = try_allocate(pages)) {
      ASSERT_TRUE(free(**region));
      steps();
      ++pages;
    }
    Region& region = allocate(--pages);
    full = &region;
    full_pages = pages;
    std::vector<unsigned char> bytes(pages);
    for (std::uint32_t i = 0; i < pages; ++i) {
      bytes[i] = static_cast<unsigned char>(i + 1);
      const Status written = cpu_write(region, i, bytes[i]);
      ASSERT_TRUE(written) << "page " << i << " of " << pages << ": " << written.error().message;
    }
    for (const Order order : kOrders) {
      SCOPED_TRACE(::testing::Message() << "order " << int(order) << " of " << pages << " pages");
      for (const std::uint32_t i : visits<std::uint32_t>(order, pages)) {
        expect_bytes(thread, region, i, bytes[i]);
        if (HasFatalFailure()) return;
        write_to_the_end(thread, writing(region, i), ++bytes[i]);
        check();
      }
      for (const std::uint32_t i : visits<std::uint32_t>(order, pages)) {
        expect_stored(region, i, bytes[i]);
        if (HasFatalFailure()) return;
        ASSERT_TRUE(cpu_write(region, i, ++bytes[i]));
      }
    }
    EXPECT_LT(inside->spill_error().size(), 500u) << "each refusal quotes the one before: " << inside->spill_error();
  }
  Region* full = nullptr;  // the region that fills the machine
  std::uint32_t full_pages = 0;
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

// Time stands still: a wait for the node would not end.
TEST_F(MoverFull, WithANodeThatIsAwayBesideWhatIsFull) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 4, .spill_pages = 12}, true);
}

TEST_F(MoverFull, WithThePolicy) {
  every_page_serves_in_every_order({.hbm_pages = 8, .host_pages = 4, .spill_pages = 12, .real_policy = true});
}

// Time stands still: the tier having been full is no reason to refuse room freed since.
TEST_F(MoverFull, RoomThatWasFreedBelowIsUsedAtOnce) {
  every_page_serves_in_every_order({.hbm_pages = 4, .host_pages = 2, .spill_pages = 8});
  ASSERT_TRUE(free(*full));
  settle();
  Region& next = allocate(full_pages);
  for (std::uint32_t i = 0; i < full_pages; ++i) {
    const Status written = cpu_write(next, i, static_cast<unsigned char>(i + 1));
    ASSERT_TRUE(written) << "page " << i << ": " << written.error().message;
  }
}

// An acquire that needs a place for a written page waits for the node until the call's time limit.
TEST_F(MoverFull, ANodeThatIsAwayIsWaitedFor) {
  call_wait_us = 1'000'000;
  start({.hbm_pages = 4, .host_pages = 2, .spill_pages = 16});
  Actor& thread = actor();
  Region& region = allocate(12);
  spill->away = true;
  for (std::uint32_t page = 0; page < 6; ++page) write_to_the_end(thread, writing(region, page), 1);
  const auto refused = begin(thread, writing(region, 6));
  steps();
  now_us += acquire_wait_us;  // no frame becomes free, so serve in place
  steps();
  EXPECT_FALSE(refused->done());
  now_us += call_wait_us;
  const Status status = complete(*refused);
  ASSERT_FALSE(status);
  EXPECT_EQ(status.error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_NE(status.error().message.find("the scripted node is away"), std::string::npos) << status.error().message;
  const auto waits = begin(thread, writing(region, 6));
  steps();
  spill->away = false;
  now_us += 1'000;
  ASSERT_TRUE(complete(*waits));
  release(thread, waits->range);
  finish_work(thread);
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

// Ordering the requests is not enough: each small page is done before the next is asked for.
TEST_F(MoverFull, ALargePagesRoomIsNotTakenByPagesFetchedAhead) {
  start({.hbm_pages = 8, .host_pages = 8, .spill_pages = 40});
  Actor& thread = actor();
  Region& small = allocate(24);
  inside->set_page_bytes(4 * kPageBytes);
  Region& large = allocate(4);
  for (std::uint32_t i = 0; i < 24; ++i) write_to_the_end(thread, writing(small, i), static_cast<unsigned char>(i));
  write_to_the_end(thread, writing(large, 0), 77);
  // The advice evicts what can go now. While the page's room is being made it cannot.
  ASSERT_TRUE(step_until([&] {
    evict_to_the_end(writing(large, 0));
    return !in_hbm(large, 0);
  }));
  for (std::uint32_t i = 0; i < 24; ++i) evict_to_the_end(writing(small, i));
  ASSERT_FALSE(in_host(large, 0));
  // Held pages: prefetches find no frame.
  for (std::uint32_t i = 0; i < 8; ++i) {
    ASSERT_TRUE(acquire(thread, writing(small, i)));
    settle();
    EXPECT_TRUE(in_hbm(small, i)) << i;
  }
  EXPECT_EQ(page(large, 0).frame, kNoFrame);
  spill->hold_back(tiers::Direction::load);
  prefetch(writing(small, 8, 16));
  steps();
  const std::uint64_t ahead = spill->submitted(tiers::Direction::load);
  const auto wanted = begin(thread, reading(large, 0));
  steps();
  EXPECT_FALSE(wanted->done());
  spill->let_go();
  const Status served = complete(*wanted);
  ASSERT_TRUE(served) << served.error().message;
  // Once the large page has its slot, the rest of host memory serves small pages again.
  EXPECT_LE(spill->submitted(tiers::Direction::load), ahead + 1 + 4);
  release(thread, wanted->range);
  for (std::uint32_t i = 0; i < 8; ++i) release(thread, writing(small, i));
  finish_work(thread);
  expect_bytes(thread, large, 0, 77);
  for (std::uint32_t i = 8; i < 24; ++i) expect_bytes(thread, small, i, static_cast<unsigned char>(i));
}

// Recalls of prefetched pages occupy both pages of host memory, and HBM is full.
class MoverFullOfRecalls : public MoverTest {
 protected:
  void SetUp() override {
    start({.hbm_pages = 4, .host_pages = 2, .spill_pages = 16});
    thread = &actor();
    ahead = &allocate(6);
    in_hbm = &allocate(4);
    for (std::uint32_t i = 0; i < 6; ++i) write_to_the_end(*thread, writing(*ahead, i), static_cast<unsigned char>(i));
    for (std::uint32_t i = 0; i < 6; ++i) evict_to_the_end(writing(*ahead, i));
    for (std::uint32_t i = 0; i < 4; ++i) write_to_the_end(*thread, writing(*in_hbm, i), 40);
    spill->hold_back(tiers::Direction::load);
    prefetch(writing(*ahead, 0, 2));
    steps();
    for (std::uint32_t i = 0; i < 4; ++i) ASSERT_TRUE(MoverTest::in_hbm(*in_hbm, i));
    ASSERT_EQ(tier->usage().used_bytes, tier->usage().budget_bytes);
    ASSERT_EQ(inside->in_flight(), 2u) << "the recalls";
  }
  Actor* thread = nullptr;
  Region *ahead = nullptr, *in_hbm = nullptr;
};

TEST_F(MoverFullOfRecalls, AnAcquireOfAFreshPageWaits) {
  Region& fresh = allocate(1);
  const auto wanted = begin(*thread, writing(fresh, 0));
  steps();
  now_us += acquire_wait_us;  // the recalls outlast the wait for a frame
  steps();
  EXPECT_FALSE(wanted->done());
  spill->let_go();
  const Status served = complete(*wanted);
  ASSERT_TRUE(served) << served.error().message;
  fill(*thread, wanted->range, 9);
  release(*thread, wanted->range);
  finish_work(*thread);
  expect_bytes(*thread, fresh, 0, 9);
  for (std::uint32_t i = 0; i < 6; ++i) expect_bytes(*thread, *ahead, i, static_cast<unsigned char>(i));
}

TEST_F(MoverFullOfRecalls, AnAcquireThatDiscardsWaits) {
  const auto wanted = begin(*thread, discarding(*ahead, 5));
  steps();
  now_us += acquire_wait_us;
  steps();
  EXPECT_FALSE(wanted->done());
  spill->let_go();
  const Status served = complete(*wanted);
  ASSERT_TRUE(served) << served.error().message;
  release(*thread, wanted->range);
  finish_work(*thread);
}

TEST_F(MoverFullOfRecalls, AWriteByTheProcessorWaits) {
  Region& fresh = allocate(1);
  OpenPageRequest open;
  open.run = {&fresh, 0, 1};
  open.write = true;
  mover->post(open);
  steps();
  EXPECT_FALSE(open.done());
  spill->let_go();
  ASSERT_TRUE(step_until([&] { return open.done(); }));
  ASSERT_TRUE(open.result()) << open.result().error().message;
  ClosePageRequest close;
  close.run = open.run;
  EXPECT_TRUE(ask(close));
}

}  // namespace
}  // namespace vmem::migration
