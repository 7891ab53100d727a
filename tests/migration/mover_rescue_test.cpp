// Pages of frozen regions whose bytes this program has lost, other than in a load from below: they
// come from a source that has copies.
#include <gmock/gmock.h>

#include "migration/mover_published.hpp"

namespace vmem::migration {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using tiers::Direction;

class Rescues : public Freeze {
 protected:
  // Page i has the bytes that the source has. Written by the GPU, it lies in HBM, and nowhere else.
  Region& written_in_hbm(std::uint32_t pages) {
    Region& region = allocate(pages);
    Actor& writer = actor();
    for (std::uint32_t i = 0; i < pages; ++i) write_to_the_end(writer, writing(region, i), ScriptedFiles::value_of(i));
    EXPECT_TRUE(freeze(region));
    settle();
    return region;
  }
  Region& written_in_host_memory(std::uint32_t pages) {
    Region& region = allocate(pages);
    for (std::uint32_t i = 0; i < pages; ++i) EXPECT_TRUE(cpu_write(region, i, ScriptedFiles::value_of(i)));
    EXPECT_TRUE(freeze(region));
    return region;
  }
  void add_source(Region& region) {
    RescueRequest rescue;
    rescue.region = &region;
    rescue.first_granule = region.first.index;
    rescue.source = files->map(region.page_count * kPageBytes);
    EXPECT_TRUE(ask(rescue));
  }
  // The frame is reused before its page's store fails.
  void lose_in_a_store(Region& region, std::uint32_t index, Region& other) {
    Actor& user = actor();
    expect_bytes(user, region, index, ScriptedFiles::value_of(index));
    finish_work(user);
    tier->hold_back(Direction::store);
    tier->answer_next(Direction::store, tiers::Outcome::failed);
    evict(reading(region, index));
    ASSERT_TRUE(acquire(user, writing(other, 0)));
    release(user, writing(other, 0));
    tier->let_go(Direction::store);
    finish_work(user);
    settle();
  }
};

TEST_F(Rescues, AFailedStoreThatLeavesNoFrame) {
  start({.hbm_pages = 1, .files = true});
  Region& region = written_in_hbm(1);
  add_source(region);
  Region& other = allocate(1);
  lose_in_a_store(region, 0, other);
  EXPECT_FALSE(state(region, 0).has(PageState::kLost));
  EXPECT_FALSE(opens_here(region, 0)) << "it is not fetched for other nodes";
  EXPECT_EQ(files->loads, 0u);
  expect_bytes(actor(), region, 0, ScriptedFiles::value_of(0));
  EXPECT_EQ(files->loads, 1u);
  EXPECT_TRUE(opens_here(region, 0));
  check();
}

TEST_F(Rescues, WithoutASourceItIsLost) {
  start({.hbm_pages = 1, .files = true});
  Region& region = written_in_hbm(1);
  Region& other = allocate(1);
  lose_in_a_store(region, 0, other);
  EXPECT_EQ(acquire(actor(), reading(region, 0)).error().status, VMEM_ERROR_LOST);
}

TEST_F(Rescues, WhatNoNodeHasIsLost) {
  start({.hbm_pages = 1, .files = true});
  Region& region = written_in_hbm(1);
  add_source(region);
  Region& other = allocate(1);
  lose_in_a_store(region, 0, other);
  files->answer_next(tiers::Outcome::lost, "no node has it");
  const Status lost = acquire(actor(), reading(region, 0));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().status, VMEM_ERROR_LOST);
  EXPECT_THAT(lost.error().message, HasSubstr("no node has it"));
}

// Work that was queued behind the load has read other bytes, and is told so once.
TEST_F(Rescues, ALoadIntoHbmWhoseSourceIsGone) {
  start({.hbm_pages = 2, .files = true});
  Region& region = written_in_host_memory(2);
  add_source(region);
  Actor& user = actor();
  tier->answer_next(Direction::load, tiers::Outcome::lost);
  ASSERT_TRUE(acquire(user, reading(region, 1)));  // the outcome comes later
  release(user, reading(region, 1));
  finish_work(user);
  settle();
  check();
  const Status told = acquire(user, reading(region, 1));
  ASSERT_FALSE(told);
  EXPECT_EQ(told.error().status, VMEM_ERROR_DRIVER);
  EXPECT_THAT(told.error().message, HasSubstr("repeat that work"));
  expect_bytes(user, region, 1, ScriptedFiles::value_of(1));
  EXPECT_EQ(files->loads, 1u);
  expect_bytes(user, region, 0, ScriptedFiles::value_of(0));
  check();
}

TEST_F(Rescues, AHeldPageIsTakenBackAfterItsHold) {
  start({.hbm_pages = 2, .files = true});
  Region& region = written_in_host_memory(1);
  add_source(region);
  Actor& holder = actor();
  Actor& user = actor();
  tier->answer_next(Direction::load, tiers::Outcome::lost);
  ASSERT_TRUE(acquire(holder, reading(region, 0)));
  settle();
  EXPECT_EQ(acquire(user, reading(region, 0)).error().status, VMEM_ERROR_DRIVER);
  release(holder, reading(region, 0));
  finish_work(holder);
  EXPECT_EQ(acquire(user, reading(region, 0)).error().status, VMEM_ERROR_DRIVER);
  expect_bytes(user, region, 0, ScriptedFiles::value_of(0));
  check();
}

TEST_F(Rescues, WhatWasLostBeforeIsNotPublished) {
  start({.hbm_pages = 2, .files = true});
  Region& region = allocate(2);
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(cpu_write(region, i, std::uint8_t(1 + i)));
  Actor& user = actor();
  tier->answer_next(Direction::load, tiers::Outcome::lost);
  ASSERT_TRUE(acquire(user, reading(region, 1)));
  release(user, reading(region, 1));
  finish_work(user);
  settle();
  const Status refused = freeze(region);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_THAT(refused.error().message, AllOf(HasSubstr("cannot be published"), HasSubstr("no valid copy left")));
  EXPECT_TRUE(cpu_write(region, 0, 9)) << "it is writable as before";
}

TEST_F(Rescues, WhatIsLostWhileTheRegionIsBeingFrozenIsNotPublished) {
  start({.hbm_pages = 2, .files = true});
  Region& region = allocate(2);
  for (std::uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(cpu_write(region, i, std::uint8_t(1 + i)));
  Actor& user = actor();
  tier->hold_back(Direction::load);
  tier->answer_next(Direction::load, tiers::Outcome::lost);
  ASSERT_TRUE(acquire(user, reading(region, 1)));
  release(user, reading(region, 1));
  FreezeRequest request;
  aim(request, region);
  mover->post(request);
  steps();
  ASSERT_FALSE(request.done());
  tier->let_go(Direction::load);
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  finish_work(user);
  ASSERT_FALSE(request.result());
  EXPECT_EQ(request.result().error().status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_THAT(request.result().error().message,
              AllOf(HasSubstr("cannot be published"), HasSubstr("no valid copy left")));
  EXPECT_TRUE(cpu_write(region, 0, 9)) << "it is writable as before";
}

// One page of a region is on its way to a thread that reads it, and mapped nowhere.
class FreezesBesideALoad : public Rescues {
 protected:
  void begin(tiers::Outcome answer = tiers::Outcome::done) {
    start({.hbm_pages = 2, .host_pages = 2, .spill_pages = 8});
    region = &allocate(6);
    Actor& user = actor();
    for (std::uint32_t i = 0; i < 6; ++i) write_to_the_end(user, writing(*region, i), std::uint8_t(1 + i));
    settle();
    std::uint32_t below = 0;
    while (below < 6 && (page(*region, below).has_frame() || in_host(*region, below))) ++below;
    ASSERT_LT(below, 6u);
    spill->hold_back(Direction::load);
    if (answer != tiers::Outcome::done) spill->answer_next(Direction::load, answer);
    open.run = {region, below, 1};
    mover->post(open);
    steps();
    ASSERT_FALSE(open.done());
    aim(request, *region);
    mover->post(request);
    steps();
    ASSERT_FALSE(request.done());
  }

  Region* region = nullptr;
  OpenPageRequest open;
  FreezeRequest request;
};

TEST_F(FreezesBesideALoad, WhatIsLostMeanwhileIsNotPublished) {
  ASSERT_NO_FATAL_FAILURE(begin(tiers::Outcome::lost));
  spill->let_go();
  ASSERT_TRUE(step_until([&] { return request.done() && open.done(); }));
  EXPECT_FALSE(open.result());
  ASSERT_FALSE(request.result());
  EXPECT_THAT(request.result().error().message,
              AllOf(HasSubstr("cannot be published"), HasSubstr("no valid copy left")));
}

TEST_F(FreezesBesideALoad, TheyWaitAsLongAsForAnyPageFromBelow) {
  ASSERT_NO_FATAL_FAILURE(begin());
  now_us += 20 * acquire_wait_us;
  steps();
  ASSERT_FALSE(request.done()) << "it is no work of the GPU that would not end";
  spill->let_go();
  ASSERT_TRUE(step_until([&] { return open.done(); }));
  EXPECT_TRUE(open.result());
  close_page(*region, open.run.first);
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  EXPECT_TRUE(request.result());
}

TEST_F(FreezesBesideALoad, ANodeThatDoesNotAnswerEndsThemWithTimeout) {
  ASSERT_NO_FATAL_FAILURE(begin());
  steps();
  now_us += call_wait_us + 1000;
  ASSERT_TRUE(step_until([&] { return request.done() && open.done(); }));
  ASSERT_FALSE(request.result());
  EXPECT_EQ(request.result().error().status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(request.result().error().message, HasSubstr("did not come within 30s (option call_wait)"));
  EXPECT_FALSE(open.result());
  spill->let_go();
  EXPECT_TRUE(cpu_write(*region, 0, 9)) << "it is writable as before";
}

}  // namespace
}  // namespace vmem::migration
