// Published regions: one's own, which from then on is only read, and those of other nodes, which
// lie where they lie there.
#include <gmock/gmock.h>

#include <cstring>

#include "migration/mover_published.hpp"

namespace vmem::migration {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(Freeze, TheRegionIsReadAndNeverWrittenAgain) {
  start();
  Region& region = allocate(3);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 7);
  write_to_the_end(a, writing(region, 2), 9);
  ASSERT_TRUE(freeze(region));
  EXPECT_THAT(unwritten, ElementsAre(1));
  const Status refused = acquire(a, writing(region, 0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_THAT(refused.error().message, HasSubstr("is published: it can be read, and not acquired for writing"));
  EXPECT_FALSE(cpu_write(region, 0, 1));
  expect_bytes(a, region, 0, 7);
  expect_bytes(a, region, 2, 9);
  EXPECT_EQ(state(region, 0).access(), Access::read);
  evict_to_the_end(writing(region, 0, 3));
  expect_bytes(a, region, 2, 9);
}

// What a kernel does undeclared faults there, and nothing is changed.
TEST_F(Freeze, ItsMappingsAllowOnlyReading) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 7);
  ASSERT_TRUE(freeze(region));
  ASSERT_TRUE(acquire(a, launching(region, 0)));
  CUmemLocation location{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  unsigned long long flags = 0;
  const CUdeviceptr address = space->address_of(region.first.index);
  ASSERT_EQ((*driver)->cuMemGetAccess(&flags, &location, address), CUDA_SUCCESS);
  EXPECT_EQ(flags, static_cast<unsigned long long>(CU_MEM_ACCESS_FLAGS_PROT_READ));
  release(a, launching(region, 0));
  finish_work(a);
}

TEST_F(Freeze, ItWaitsForWorkThatWasQueuedBefore) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate kernel = gate(a);
  fill(a, writing(region, 0), 5);
  release(a, writing(region, 0));
  FreezeRequest request;
  aim(request, region);
  mover->post(request);
  steps();
  EXPECT_FALSE(request.done());
  kernel.open();
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  EXPECT_TRUE(request.result());
  EXPECT_TRUE(request.unwritten.empty());
  expect_bytes(a, region, 0, 5);
}

TEST_F(Freeze, WhatIsHeldIsRefusedAndStaysWritable) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 1)));
  const Status refused = freeze(region);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_IN_USE);
  EXPECT_THAT(refused.error().message, HasSubstr("it is held by an acquire; release it before"));
  release(a, writing(region, 1));
  finish_work(a);
  EXPECT_TRUE(acquire(a, writing(region, 0)));
  release(a, writing(region, 0));
  finish_work(a);
}

TEST_F(Freeze, WorkThatDoesNotEndLeavesAllAsItWas) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  Actor& b = actor();
  write_to_the_end(a, writing(region, 0), 3);
  ASSERT_TRUE(acquire(a, writing(region, 1)));
  Gate kernel = gate(a);
  release(a, writing(region, 1));
  FreezeRequest request;
  aim(request, region);
  mover->post(request);
  steps();
  // Mapped for reading only, while the region is being frozen.
  ASSERT_TRUE(acquire(b, reading(region, 0)));
  release(b, reading(region, 0));
  finish_work(b);
  now_us += 20 * acquire_wait_us;
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  ASSERT_FALSE(request.result());
  EXPECT_EQ(request.result().error().status, VMEM_ERROR_IN_USE);
  EXPECT_THAT(request.result().error().message, HasSubstr("work that uses it does not end"));
  write_to_the_end(b, writing(region, 0), 4);
  expect_bytes(b, region, 0, 4);
  kernel.open();
  finish_work(a);
  EXPECT_TRUE(freeze(region));
}

TEST_F(Freeze, WhatSharesPagesIsRefusedAndSoIsASecondTime) {
  start();
  Region& slab = allocate(1, 0, true);
  const Status shares = freeze(slab);
  ASSERT_FALSE(shares);
  EXPECT_EQ(shares.error().status, VMEM_ERROR_INVALID_VALUE);
  EXPECT_THAT(shares.error().message, HasSubstr("it shares pages with other allocations"));
  Region& region = allocate(1);
  ASSERT_TRUE(freeze(region));
  const Status twice = freeze(region);
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message, HasSubstr("it is published already"));
  ASSERT_TRUE(close(region));
  Region& next = allocate(1);
  Actor& a = actor();
  EXPECT_TRUE(acquire(a, writing(next, 0))) << "its record may be that of the region before";
  release(a, writing(next, 0));
  finish_work(a);
}

TEST_F(Freeze, APageBelowHostMemoryIsLoadedForAnotherNode) {
  start({.hbm_pages = 2, .host_pages = 2, .spill_pages = 8});
  Region& region = allocate(6);
  Actor& a = actor();
  for (std::uint32_t i = 0; i < 6; ++i) write_to_the_end(a, writing(region, i), static_cast<unsigned char>(i + 1));
  settle();
  ASSERT_TRUE(freeze(region));
  int below = 0;
  for (std::uint32_t i = 0; i < 6; ++i) {
    below += in_hbm(region, i) || page(region, i).owns_frame() || in_host(region, i) ? 0 : 1;
    EXPECT_TRUE(opens_here(region, i)) << i;
  }
  EXPECT_GT(below, 0);
  for (std::uint32_t i = 0; i < 6; ++i) expect_bytes(a, region, i, static_cast<unsigned char>(i + 1));
}

// Its addresses and its record would go to another region, which other nodes would read.
TEST_F(Freeze, OnlyItsCloseFreesIt) {
  start();
  Region& region = allocate(2);
  ASSERT_TRUE(freeze(region));
  const Status refused = free(region);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_INVALID_POINTER);
  EXPECT_THAT(refused.error().message, HasSubstr("end it by vmem_close"));
  EXPECT_TRUE(close(region));
}

TEST_F(Freeze, ItWaitsForACpuWriteInProgress) {
  start();
  Region& region = allocate(1);
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  open.write = true;
  ASSERT_TRUE(ask(open));
  FreezeRequest request;
  aim(request, region);
  mover->post(request);
  steps();
  EXPECT_FALSE(request.done());
  // The page has its bytes, and may get others until it is closed.
  Actor& a = actor();
  const auto kernel = begin(a, reading(region, 0));
  steps();
  EXPECT_FALSE(kernel->done());
  std::memset(open.host, 5, kPageBytes);
  close_page(region, 0);
  ASSERT_TRUE(complete(*kernel));
  release(a, reading(region, 0));
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  EXPECT_TRUE(request.result());
  expect_bytes(a, region, 0, 5);
}

// What a kernel that was queued before the freeze writes is not in the page until it has run.
TEST_F(Freeze, TheCpuWaitsForKernelsThatWriteUntilItEnds) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  Gate kernel = gate(a);
  fill(a, writing(region, 0), 7);
  release(a, writing(region, 0));
  FreezeRequest request;
  aim(request, region);
  mover->post(request);
  steps();
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  mover->post(open);
  steps();
  EXPECT_FALSE(open.done());
  kernel.open();
  ASSERT_TRUE(step_until([&] { return open.done(); }));
  close_page(region, 0);
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  EXPECT_TRUE(request.result());
  expect_bytes(a, region, 0, 7);
}

TEST_F(Freeze, KernelsAndOtherNodesReadAPageAtOnce) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 1));
  ASSERT_TRUE(freeze(region));
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  open.for_other_node = true;
  ASSERT_TRUE(ask(open));
  ASSERT_NE(open.host, nullptr);
  const auto reads = begin(a, reading(region, 0));
  ASSERT_TRUE(step_until([&] { return reads->done(); })) << "while it is open";
  ASSERT_TRUE(complete(*reads));
  Gate kernel = gate(a);
  release(a, reading(region, 0));
  EXPECT_TRUE(in_hbm(region, 0));
  EXPECT_TRUE(opens_here(region, 0)) << "while the kernel reads it";
  EXPECT_EQ(*open.host, std::byte{1});
  kernel.open();
  finish_work(a);
  close_page(region, 0);
  expect_bytes(a, region, 0, 1);
}

// A page in HBM needs no slot: other pages take it. Not from readers.
TEST_F(Freeze, APageInHbmKeepsItsSlotUntilTheLastReaderHasClosedIt) {
  start({.hbm_pages = 2, .host_pages = 1});
  Region& region = allocate(1);
  Region& other = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 1));
  ASSERT_TRUE(freeze(region));
  OpenPageRequest first, second;
  for (OpenPageRequest* open : {&first, &second}) {
    open->run = {&region, 0, 1};
    open->for_other_node = true;
    ASSERT_TRUE(ask(*open));
    ASSERT_NE(open->host, nullptr);
  }
  expect_bytes(a, region, 0, 1);
  evict(reading(region, 0));
  settle();
  ASSERT_TRUE(in_hbm(region, 0));
  write_to_the_end(a, writing(other, 0), 9);
  evict(writing(other, 0));
  settle();
  EXPECT_TRUE(page(other, 0).owns_frame());
  close_page(region, 0);
  evict(writing(other, 0));
  settle();
  EXPECT_TRUE(page(other, 0).owns_frame());
  EXPECT_TRUE(in_host(region, 0));
  EXPECT_EQ(*first.host, std::byte{1});
  close_page(region, 0);
  evict_to_the_end(writing(other, 0));
  EXPECT_TRUE(in_host(other, 0));
  EXPECT_FALSE(in_host(region, 0));
  expect_bytes(a, region, 0, 1);
}

TEST_F(Freeze, AnotherNodeReadsAPageWhileQueuedKernelsRead) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 7);
  ASSERT_TRUE(freeze(region));
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  Gate kernel = gate(a);
  release(a, reading(region, 0));
  OpenPageRequest open;
  open.run = {&region, 0, 1};
  open.for_other_node = true;
  mover->post(open);
  steps();
  const bool at_once = open.done();
  kernel.open();
  ASSERT_TRUE(step_until([&] { return open.done(); }));
  EXPECT_TRUE(at_once);
  close_page(region, 0);
  finish_work(a);
}

TEST_F(Freeze, APageWhoseCopyBelowIsLostComesFromOtherNodes) {
  constexpr std::uint32_t kPages = 12;
  start({.hbm_pages = 2, .host_pages = 4, .spill_pages = 32, .files = true});
  Region& region = allocate(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) ASSERT_TRUE(cpu_write(region, i, ScriptedFiles::value_of(i)));
  ASSERT_TRUE(freeze(region));
  settle();
  RescueRequest rescue;
  rescue.region = &region;
  rescue.first_granule = region.first.index;
  rescue.source = files->map(kPages * kPageBytes);
  ASSERT_TRUE(ask(rescue));
  Region& other = allocate(8);
  Actor& user = actor();
  const auto goes_below = [&](std::uint32_t index) {
    for (std::uint32_t i = 0; i < other.page_count; ++i) write_to_the_end(user, writing(other, i), 9);
    settle();
    return !page(region, index).has_frame() && !page(region, index).slot_current();
  };
  ASSERT_TRUE(goes_below(3));
  EXPECT_TRUE(opens_here(region, 3)) << "its own copy is loaded";
  ASSERT_TRUE(goes_below(3));
  spill->answer_next(tiers::Direction::load, tiers::Outcome::lost);
  EXPECT_FALSE(opens_here(region, 3)) << "it is not fetched for other nodes";
  EXPECT_EQ(files->loads, 0u);
  expect_bytes(user, region, 3, ScriptedFiles::value_of(3));
  EXPECT_EQ(files->loads, 1u);
  ASSERT_TRUE(goes_below(3));
  EXPECT_TRUE(opens_here(region, 3)) << "it was stored anew";
  EXPECT_EQ(files->loads, 1u);
  ASSERT_TRUE(goes_below(3));
  spill->answer_next(tiers::Direction::load, tiers::Outcome::lost);
  files->answer_next(tiers::Outcome::lost, "no node has it");
  const Status lost = acquire(user, reading(region, 3));
  ASSERT_FALSE(lost);
  EXPECT_EQ(lost.error().status, VMEM_ERROR_LOST);
  EXPECT_THAT(lost.error().message, HasSubstr("no node has it"));
  rescue.source.reset();
  ASSERT_TRUE(close(region));
  settle();
  EXPECT_EQ(files->sources, 0u);
  ASSERT_TRUE(free(other));
  settle();
  EXPECT_EQ(spill->usage().used_bytes, 0u);
}

TEST_F(OpenRegion, LiesWhereItsOwnerHasItWithItsPagesAndSerial) {
  start({.hbm_pages = 4, .host_pages = 8, .files = true});
  ASSERT_TRUE(space->withdraw(32, 32));
  const auto opened = open(3);
  ASSERT_TRUE(opened) << opened.error().message;
  Region& region = **opened;
  EXPECT_EQ(region.first.index, 40u);
  EXPECT_EQ(region.page_bytes(), 2 * kPageBytes);
  EXPECT_EQ(region.page_count, 3u);
  EXPECT_EQ(region.serial, pagetable::Serial{5});
  Actor& a = actor();
  expect_bytes(a, region, 2, 2);
  const Status refused = acquire(a, writing(region, 0));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("is the published region 'weights', mapped: it can be read"));
  EXPECT_FALSE(free(region)) << "only its close frees it";
  ASSERT_TRUE(close(region));
  EXPECT_TRUE(open(3)) << "its place is free again";
  ASSERT_TRUE(close(*space->region_at(40)));
}

TEST_F(OpenRegion, ThePageThatKernelsReadKeepsItsSlotWhileItIsOpen) {
  start({.hbm_pages = 8, .host_pages = 8, .files = true});
  ASSERT_TRUE(space->withdraw(32, 32));
  const auto opened = open(2);
  ASSERT_TRUE(opened) << opened.error().message;
  Region& region = **opened;
  OpenPageRequest page;
  page.run = {&region, 1, 1};
  ASSERT_TRUE(ask(page));
  ASSERT_NE(page.host, nullptr);
  Actor& a = actor();
  expect_bytes(a, region, 1, 1);
  EXPECT_TRUE(in_hbm(region, 1));
  settle();
  EXPECT_TRUE(in_host(region, 1));
  EXPECT_EQ(*page.host, std::byte{1});
  ClosePageRequest close_page;
  close_page.run = page.run;
  ASSERT_TRUE(ask(close_page));
  EXPECT_FALSE(in_host(region, 1)) << "its bytes are in HBM";
  expect_bytes(a, region, 1, 1);
  ASSERT_TRUE(close(region));
}

TEST_F(OpenRegion, InThisNodesPartOrOverAnotherRegionIsRefused) {
  start({.hbm_pages = 4, .host_pages = 8, .files = true});
  const auto own = open(3);
  ASSERT_FALSE(own);
  EXPECT_EQ(own.error().status, VMEM_ERROR_IN_USE);
  ASSERT_TRUE(space->withdraw(32, 32));
  const auto first = open(3);
  ASSERT_TRUE(first);
  const auto over = open(1, {.first_granule = 42, .page_shift = 1, .serial = pagetable::Serial{6}});
  ASSERT_FALSE(over);
  EXPECT_EQ(over.error().status, VMEM_ERROR_IN_USE);
  EXPECT_EQ(files->sources, 1u) << "nothing is left of those that were refused";
  ASSERT_TRUE(close(**first));
}

}  // namespace
}  // namespace vmem::migration
