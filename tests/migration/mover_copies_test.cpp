// Copies in host memory of pages that other nodes published: within their quota, and never at the
// cost of the program's own pages.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "migration/mover_published.hpp"

namespace vmem::migration {
namespace {

class Copies : public OpenRegion {
 protected:
  static constexpr std::uint32_t kFirst = 32;
  void start_with(MachineShape wanted) {
    wanted.files = true;
    start(wanted);
    ASSERT_TRUE(space->withdraw(kFirst, 32));
    user = &actor();
  }
  // One of the regions that lie one after the other.
  Region& open_region(std::uint32_t pages) {
    const auto opened = open(pages, {.first_granule = next_, .page_shift = 0, .serial = pagetable::Serial{next_}});
    if (!opened) throw std::runtime_error(opened.error().message);
    first_value_[*opened] = value_;
    value_ = static_cast<unsigned char>(value_ + pages);
    next_ += pages;
    return **opened;
  }
  unsigned char value_of(Region& region, std::uint32_t index) {
    return static_cast<unsigned char>(first_value_.at(&region) + index);
  }
  // As vmem_read does.
  void read(Region& region, std::uint32_t index) {
    expect_stored(region, index, value_of(region, index));
    settle();
  }
  void use(Region& region, std::uint32_t index) {
    expect_bytes(*user, region, index, value_of(region, index));
    settle();
  }
  void open_page(Region& region, std::uint32_t index) {
    OpenPageRequest request;
    request.run = {&region, index, 1};
    ASSERT_TRUE(ask(request));
  }
  // Pages of this program in host memory, none in HBM.
  Region& own_in_host(std::uint32_t pages) {
    Region& own = allocate(pages);
    for (std::uint32_t i = 0; i < pages; ++i) EXPECT_TRUE(cpu_write(own, i, static_cast<unsigned char>(100 + i)));
    settle();
    return own;
  }
  StatisticsRequest::PublishedCopies copies() {
    StatisticsRequest request;
    EXPECT_TRUE(ask(request));
    return request.published;
  }
  std::uint64_t cached_pages() { return copies().bytes / kPageBytes; }
  Actor* user = nullptr;

 private:
  std::uint32_t next_ = kFirst;
  unsigned char value_ = 0;
  std::map<Region*, unsigned char> first_value_;
};

TEST_F(Copies, TheLeastRecentlyUsedGoBeyondTheQuota) {
  start_with({.hbm_pages = 4, .host_pages = 8, .cache_pages = 3});
  Region& table = open_region(6);
  for (const std::uint32_t i : {0u, 1u, 2u, 0u, 3u, 4u}) {
    read(table, i);
    EXPECT_LE(cached_pages(), 3u);
    check();
  }
  for (std::uint32_t i = 0; i < 6; ++i) EXPECT_EQ(in_host(table, i), i == 0 || i == 3 || i == 4) << i;
  EXPECT_EQ(copies().dropped_pages, 2u);
  EXPECT_EQ(copies().dropped_bytes, 2 * kPageBytes);
  EXPECT_EQ(copies().quota_bytes, 3 * kPageBytes);
  const std::uint64_t loads = files->loads;
  for (const std::uint32_t i : {0u, 3u, 4u}) read(table, i);
  EXPECT_EQ(files->loads, loads) << "they are here";
}

TEST_F(Copies, APageThatHbmEvictsIsFoundInHostMemory) {
  start_with({.hbm_pages = 2, .host_pages = 8, .cache_pages = 6});
  Region& table = open_region(6);
  for (std::uint32_t i = 0; i < 2; ++i) use(table, i);
  EXPECT_EQ(cached_pages(), 0u) << "while HBM has room, a copy is of no use";
  for (int round = 0; round < 2; ++round)
    for (std::uint32_t i = 0; i < 6; ++i) use(table, i);
  const std::uint64_t loads = files->loads;
  for (int round = 0; round < 2; ++round)
    for (std::uint32_t i = 0; i < 6; ++i) use(table, i);
  EXPECT_EQ(files->loads, loads);
  EXPECT_EQ(cached_pages(), 6u);
  EXPECT_EQ(tier->submitted(tiers::Direction::store), 0u) << "a clean copy is not written again";
  check();
}

class CopiesBesideOwnPages : public Copies, public ::testing::WithParamInterface<std::uint32_t> {};

// A reserve of host memory is kept free ahead of need; copies count as such.
TEST_P(CopiesBesideOwnPages, AScanLeavesTheProgramsOwnPagesWhereTheyAre) {
  start_with({.hbm_pages = 2, .host_pages = 16, .spill_pages = 32, .cache_pages = GetParam()});
  Region& own = own_in_host(8);
  Region& table = open_region(20);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 20; ++i) read(table, i);
    for (std::uint32_t i = 0; i < 20; ++i) use(table, i);
  }
  EXPECT_EQ(inside->counters().spilled_bytes, 0u);
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(in_host(own, i)) << i;
  EXPECT_EQ(cached_pages(), std::min(GetParam(), 8u)) << "of 16 pages";
  for (std::uint32_t i = 0; i < 8; ++i) expect_stored(own, i, static_cast<unsigned char>(100 + i));
  check();
}

INSTANTIATE_TEST_SUITE_P(Quotas, CopiesBesideOwnPages, ::testing::Values(0u, 2u, 1000u));

// Pages that HBM evicts for the scan need host slots while fetches fill host memory.
TEST_F(Copies, FetchesInFlightDisplaceNoPageOfTheProgram) {
  start_with({.hbm_pages = 4, .host_pages = 12, .spill_pages = 32, .cache_pages = 6});
  Region& own = allocate(8);
  for (std::uint32_t i = 0; i < 8; ++i) write_to_the_end(*user, writing(own, i), static_cast<unsigned char>(100 + i));
  settle();
  Region& table = open_region(24);
  for (const std::uint32_t polls : {1u, 7u, 40u}) {
    files->polls_each = polls;
    prefetch(reading(table, 0, 24));
    for (std::uint32_t i = 0; i < 24; ++i) expect_bytes(*user, table, i, value_of(table, i));
    settle();
    EXPECT_EQ(inside->counters().spilled_bytes, 0u) << polls;
    check();
  }
  for (std::uint32_t i = 0; i < 8; ++i) expect_stored(own, i, static_cast<unsigned char>(100 + i));
}

TEST_F(Copies, OwnPagesTakeTheirRoomAtOnce) {
  start_with({.hbm_pages = 4, .host_pages = 8});
  Region& table = open_region(8);
  for (std::uint32_t i = 0; i < 8; ++i) read(table, i);
  EXPECT_EQ(cached_pages(), 8u);
  Region& own = own_in_host(6);
  for (std::uint32_t i = 0; i < 6; ++i) EXPECT_TRUE(in_host(own, i)) << i;
  EXPECT_EQ(cached_pages(), 2u);
  EXPECT_TRUE(in_host(table, 7)) << "the most recently used";
  EXPECT_EQ(copies().dropped_pages, 0u) << "not for the quota";
}

TEST_F(Copies, WithoutAQuotaNothingStaysInHostMemory) {
  start_with({.hbm_pages = 2, .host_pages = 8, .cache_pages = 0});
  Region& table = open_region(6);
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < 6; ++i) {
      read(table, i);
      EXPECT_EQ(cached_pages(), 0u) << i;
      use(table, i);
      EXPECT_EQ(cached_pages(), 0u) << i;
      EXPECT_TRUE(opens_here(table, i)) << "it is in HBM";
    }
  }
  EXPECT_FALSE(opens_here(table, 0));
  EXPECT_EQ(tier->usage().used_bytes, 0u);
}

TEST_F(Copies, AQuotaBeyondHostMemoryIsAllOfIt) {
  start_with({.hbm_pages = 2, .host_pages = 4, .cache_pages = 100});
  Region& table = open_region(10);
  for (int round = 0; round < 2; ++round)
    for (std::uint32_t i = 0; i < 10; ++i) read(table, i);
  EXPECT_EQ(cached_pages(), 4u);
  EXPECT_EQ(copies().quota_bytes, 4 * kPageBytes);
  for (std::uint32_t i = 0; i < 10; ++i) use(table, i);
  check();
}

// What is open to the CPU or another node stays, and goes when it is closed.
TEST_F(Copies, PagesInUseExceedTheQuotaNoLongerThanTheyAreInUse) {
  start_with({.hbm_pages = 4, .host_pages = 8, .cache_pages = 2});
  Region& table = open_region(6);
  for (std::uint32_t i = 0; i < 5; ++i) open_page(table, i);
  settle();
  EXPECT_EQ(cached_pages(), 5u);
  for (std::uint32_t i = 0; i < 5; ++i) close_page(table, i);
  settle();
  EXPECT_EQ(cached_pages(), 2u);
  EXPECT_TRUE(in_host(table, 4));
  check();
}

TEST_F(Copies, PagesThatTheGpuUsesInPlaceGoWhenItsWorkHasEnded) {
  start_with({.hbm_pages = 2, .host_pages = 8, .cache_pages = 1});
  Region& table = open_region(6);
  now_us = 1;
  const auto all = begin(*user, reading(table, 0, 6));
  ASSERT_TRUE(step_until([&] {
    now_us += acquire_wait_us;
    return all->done();
  }));
  ASSERT_TRUE(complete(*all));
  Gate kernel = gate(*user);
  EXPECT_GE(cached_pages(), 4u) << "HBM has two of them";
  release(*user, reading(table, 0, 6));
  steps();
  EXPECT_GE(cached_pages(), 4u) << "the GPU uses them";
  kernel.open();
  finish_work(*user);
  ASSERT_TRUE(step_until([&] { return cached_pages() <= 1; }));
  check();
}

TEST_F(Copies, RegionsShareTheQuotaAndLeaveItWhenTheyEnd) {
  start_with({.hbm_pages = 4, .host_pages = 8, .cache_pages = 4});
  Region& first = open_region(4);
  Region& second = open_region(4);
  for (std::uint32_t i = 0; i < 3; ++i) read(first, i);
  for (std::uint32_t i = 0; i < 3; ++i) read(second, i);
  EXPECT_EQ(cached_pages(), 4u);
  EXPECT_TRUE(in_host(first, 2));
  EXPECT_FALSE(in_host(first, 1));
  ASSERT_TRUE(close(second));
  settle();
  EXPECT_EQ(cached_pages(), 1u);
  for (std::uint32_t i = 0; i < 4; ++i) read(first, i);
  EXPECT_EQ(cached_pages(), 4u);
}

TEST_F(Copies, PagesOfMappedFilesAreNotCounted) {
  start_with({.hbm_pages = 4, .host_pages = 8, .cache_pages = 1});
  Region& file = map_file(4);
  for (std::uint32_t i = 0; i < 4; ++i) expect_stored(file, i, static_cast<unsigned char>(i));
  EXPECT_EQ(cached_pages(), 0u);
  EXPECT_EQ(tier->usage().used_bytes, 4 * kPageBytes);
}

// Reads of several threads, and a prefetch, at once: more than the quota is in flight only.
TEST_F(Copies, ReadsAtOnceKeepWithinTheQuotaAndWhatIsInFlight) {
  start_with({.hbm_pages = 4, .host_pages = 16, .cache_pages = 4});
  Region& first = open_region(12);
  Region& second = open_region(12);
  Actor& other = actor();
  for (std::uint32_t round = 0; round < 3; ++round) {
    for (std::uint32_t i = 0; i < 12; i += 2) {
      prefetch(reading(first, i, 2));
      const auto one = begin(*user, reading(first, i));
      const auto two = begin(other, reading(second, i, 2));
      for (const Acquire* each : {one.get(), two.get()}) {
        ASSERT_TRUE(step_until([&] {
          now_us += each->done() ? 0 : 10;
          return each->done();
        }));
      }
      ASSERT_TRUE(complete(*one));
      ASSERT_TRUE(complete(*two));
      EXPECT_LE(cached_pages(), 4u + 5u) << "in flight or held are five at most";
      release(*user, one->range);
      release(other, two->range);
      finish_work(*user);
      finish_work(other);
      check();
    }
    settle();
    ASSERT_TRUE(step_until([&] { return cached_pages() <= 4; }));
  }
}

}  // namespace
}  // namespace vmem::migration
