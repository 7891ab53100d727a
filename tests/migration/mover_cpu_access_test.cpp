// vmem_read and vmem_write open a page where it is stored; it stays there until it is closed.
#include <cstring>
#include <deque>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class CpuAccess : public MoverTest {};

TEST_F(CpuAccess, ThePageOpenForTheCpuIsNotMappedUntilItIsClosed) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  open.write = true;
  ASSERT_TRUE(ask(open));
  const auto waiting = begin(a, reading(region, 0));
  steps();
  EXPECT_FALSE(waiting->done());
  std::memset(open.host, 0x42, kPageBytes);
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
  ASSERT_TRUE(complete(*waiting));
  release(a, reading(region, 0));
  expect_bytes(a, region, 0, 0x42);
}

TEST_F(CpuAccess, TheCpuWaitsForWorkReleasedOnThePage) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate kernel = gate(a);
  fill(a, writing(region, 0), 7);
  release(a, writing(region, 0));
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  mover->post(open);
  steps();
  EXPECT_FALSE(open.done());
  kernel.open();
  EXPECT_TRUE(step_until([&] { return open.done(); }));
  EXPECT_EQ(*reinterpret_cast<unsigned char*>(open.device_window), 7);
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
}

TEST_F(CpuAccess, TheCpuDoesNotWriteAHeldPage) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  EXPECT_EQ(cpu_write(region, 0, 1).error().status, VMEM_ERROR_IN_USE);
  release(a, reading(region, 0));
  finish_work(a);
  EXPECT_TRUE(cpu_write(region, 0, 1));
  expect_bytes(a, region, 0, 1);
}

// The mover drains the use logs at the start of a step. A use released between that and the check
// of the holds must still be seen.
TEST_F(CpuAccess, TheCpuDoesNotWriteUnderWorkReleasedWhileItAsks) {
  start();
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate kernel = gate(a);
  // A request earlier in the same step, during which the thread releases its use.
  AdviseRequest before;
  before.run = {&allocate(1), 0, 1};
  write_to_the_end(b, writing(*before.run.region, 0), 1);
  before.advice = VMEM_ADVISE_EVICT;
  // The eviction ends at this allocation, before it drains the logs.
  tier->later_allocations = 1;
  tier->on_allocate = [&] {
    log_use(a, writing(region, 0));
    withdraw(a, writing(region, 0));
  };
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  open.write = true;
  mover->post(before);
  mover->post(open);
  steps();
  EXPECT_FALSE(open.done());
  kernel.open();
  EXPECT_TRUE(step_until([&] { return open.done(); }));
  ClosePageRequest close;
  close.run = open.run;
  ASSERT_TRUE(ask(close));
}

// Small allocations share pages: holds and later uses of another allocation must not cause a
// refusal or an endless wait.
TEST_F(CpuAccess, ThePageOfSmallAllocationsIsWrittenBesideItsOtherUsers) {
  start();
  Region& region = **try_allocate(1, 0, true);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate first = gate(a);
  fill(a, writing(region, 0), 7);
  release(a, writing(region, 0));
  ASSERT_TRUE(acquire(b, writing(region, 0)));  // held throughout
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  open.write = true;
  mover->post(open);
  steps();
  EXPECT_FALSE(open.done()) << "the caller's own work may still run";
  Gate second = gate(b);
  log_use(b, writing(region, 0));
  first.open();
  EXPECT_TRUE(step_until([&] { return open.done(); })) << "work that came later is of no concern";
  ASSERT_TRUE(open.result());
  ASSERT_NE(open.device_window, 0u);
  OpenPageRequest beside;
  beside.run = open.run;
  beside.write = true;
  mover->post(beside);
  second.open();
  EXPECT_TRUE(step_until([&] { return beside.done(); }));
  *reinterpret_cast<unsigned char*>(open.device_window) = 9;
  for (const PageRun& run : {open.run, beside.run}) {
    ClosePageRequest close;
    close.run = run;
    ASSERT_TRUE(ask(close));
  }
  withdraw(b, writing(region, 0));
  finish_work(b);
  steps();
  evict_to_the_end(reading(region, 0));
  OpenPageRequest look;
  look.run = open.run;
  ASSERT_TRUE(ask(look));
  EXPECT_EQ(look.host != nullptr ? std::uint8_t(look.host[0]) : *reinterpret_cast<unsigned char*>(look.device_window),
            9);
  ClosePageRequest close;
  close.run = look.run;
  ASSERT_TRUE(ask(close));
}

TEST_F(CpuAccess, ACpuWriteToAPageInHbmMakesItsCopyOld) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 1));
  expect_bytes(a, region, 0, 1);
  ASSERT_TRUE(cpu_write(region, 0, 2));
  EXPECT_TRUE(in_hbm(region, 0));
  evict_to_the_end(reading(region, 0));
  EXPECT_EQ(tier->submitted(Direction::store), 1u);
  expect_stored(region, 0, 2);
}

TEST_F(CpuAccess, APageIsOpenToAsManyReadersAsThereAre) {
  start();
  Region& region = allocate(1);
  ASSERT_TRUE(cpu_write(region, 0, 1));
  std::deque<OpenPageRequest> opens(300);
  for (OpenPageRequest& open : opens) {
    open.run = {&region, 0, 1};
    mover->post(open);
  }
  steps();
  for (OpenPageRequest& open : opens) {
    ASSERT_TRUE(step_until([&] { return open.done(); }));
    EXPECT_NE(page(region, 0).cpu_users, 0u);
    ClosePageRequest close;
    close.run = open.run;
    ASSERT_TRUE(ask(close));
  }
  EXPECT_EQ(page(region, 0).cpu_users, 0u);
}

}  // namespace
}  // namespace vmem::migration
