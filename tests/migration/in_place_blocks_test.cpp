// Blocks of undeclared programs of which each period uses a small part: tried in place, and left
// there if periods are shorter so.
#include <algorithm>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

class InPlace : public MoverTest {
 protected:
  static constexpr std::uint32_t kPages = 4;

  void start_tables(int count) {
    start({.hbm_pages = 6,
           .host_pages = 32,
           .real_policy = true,
           .look_ahead = true,
           .undeclared = true,
           .tries_in_place = true});
    launcher = &actor();
    for (int i = 0; i < count; ++i) {
      tables.push_back(&allocate(kPages));
      write_to_the_end(*launcher, writing(*tables.back(), 0, kPages), 7);
    }
  }

  // One launch for each table, which writes a part of each of its pages. It takes the GPU so long
  // for a page that had to come, or is used in place.
  void period(std::uint64_t moved_us, std::uint64_t in_place_us) {
    for (Region* const table : tables) {
      const std::uint64_t maps = inside->counters().migrated_in_bytes;
      ASSERT_TRUE(acquire(*launcher, launching(*table, 0, kPages)));
      fill_in_part(*launcher, launching(*table, 0, kPages), ++value);
      release(*launcher, launching(*table, 0, kPages));
      finish_work(*launcher);
      now_us += (inside->counters().migrated_in_bytes - maps) / kPageBytes * moved_us;
      for (std::uint32_t i = 0; i < kPages; ++i) now_us += in_place(*table, i) ? in_place_us : 0;
      steps(3);
    }
    settle();
    check();
  }

  std::uint64_t moved_in() const { return inside->counters().migrated_in_bytes; }

  Actor* launcher = nullptr;
  std::vector<Region*> tables;
  unsigned char value = 0;
};

TEST_F(InPlace, TablesThatAreFasterInHostMemoryStayThere) {
  start_tables(3);
  for (int i = 0; i < 60; ++i) period(5'000, 10);
  const std::uint64_t before = moved_in();
  for (int i = 0; i < 20; ++i) period(5'000, 10);
  EXPECT_EQ(moved_in(), before);
  std::uint32_t pages_in_place = 0;
  for (Region* const table : tables) {
    for (std::uint32_t i = 0; i < kPages; ++i) {
      pages_in_place += in_place(*table, i) ? 1 : 0;
      EXPECT_FALSE(state(*table, i).has(PageState::kWantsFrame)) << "a launch need not ask";
    }
  }
  EXPECT_GE(pages_in_place, 3 * kPages - 6);
  for (std::uint32_t i = 0; i < 3; ++i) {
    for (std::uint32_t each = 0; each < kPages; ++each)
      expect_parts(*launcher, *tables[i], each, static_cast<unsigned char>(value - 2 + i), 7);
  }
}

TEST_F(InPlace, TablesThatAreSlowerInHostMemoryComeBack) {
  start_tables(3);
  std::uint32_t tried = 0, in_host = 0;
  for (int i = 0; i < 500; ++i) {
    period(5'000, 40'000);
    (i < 300 ? tried : in_host) += page(*tables[0], 0).in_place ? 1 : 0;
  }
  EXPECT_GT(tried, 0u);
  EXPECT_LT(in_host, 20u) << "of 200 periods";
}

TEST_F(InPlace, WhatIsFreedMeanwhileLeavesNothingBehind) {
  start_tables(3);
  while (!page(*tables[0], 0).in_place) period(5'000, 10);
  ASSERT_TRUE(free(*tables[0], launcher));
  tables.erase(tables.begin());
  settle();
  tables.push_back(&allocate(kPages));
  for (int i = 0; i < 80; ++i) period(5'000, 10);
  const std::uint64_t before = moved_in();
  for (int i = 0; i < 10; ++i) period(5'000, 10);
  EXPECT_EQ(moved_in(), before);
}

// An unmodified program frees a block and gets it back for another purpose.
TEST_F(InPlace, AFreedBlockIsNotInPlaceForItsNextUser) {
  start_tables(3);
  for (int i = 0; i < 60; ++i) period(5'000, 10);
  const auto found = std::ranges::find_if(tables, [&](const Region* each) { return in_place(*each, kPages - 1); });
  ASSERT_NE(found, tables.end());
  Region& table = **found;
  table.dead.store(true);
  const std::uint64_t life = table.life.fetch_add(1) + 1;
  launcher->slot->log.append(pagetable::LoggedUse::change(0, table.first, table.granules, std::uint32_t(life), true));
  steps();
  table.dead.store(false);
  for (std::uint32_t i = 0; i < kPages; ++i) {
    EXPECT_FALSE(page(table, i).in_place);
    EXPECT_EQ(state(table, i).has(PageState::kWantsFrame), in_place(table, i));
  }
  ASSERT_TRUE(acquire(*launcher, launching(table, 0, kPages)));
  for (std::uint32_t i = 0; i < kPages; ++i) EXPECT_TRUE(in_hbm(table, i));
  release(*launcher, launching(table, 0, kPages));
  finish_work(*launcher);
}

// What is kept is used in ways that vmem cannot see, perhaps for long.
TEST_F(InPlace, ABlockThatIsKeptComesToHbmForGood) {
  start_tables(3);
  for (int i = 0; i < 60; ++i) period(5'000, 10);
  const auto found = std::ranges::find_if(tables, [&](const Region* each) { return in_place(*each, kPages - 1); });
  ASSERT_NE(found, tables.end());
  KeepRequest keep;
  keep.run = {*found, kPages - 1, 1};
  ASSERT_TRUE(ask(keep));
  EXPECT_TRUE(in_hbm(**found, kPages - 1));
  for (std::uint32_t i = 0; i < kPages; ++i) EXPECT_FALSE(page(**found, i).in_place);
}

TEST_F(InPlace, AUseThatNeedsHbmGetsTheBlockThereForGood) {
  start_tables(3);
  for (int i = 0; i < 60; ++i) period(5'000, 10);
  Region& table = *tables[1];
  Range range = launching(table, 0, kPages);
  range.needs_hbm = true;
  ASSERT_TRUE(acquire(*launcher, range));
  for (std::uint32_t i = 0; i < kPages; ++i) {
    EXPECT_TRUE(in_hbm(table, i));
    EXPECT_FALSE(page(table, i).in_place);
  }
  release(*launcher, range);
  finish_work(*launcher);
  check();
}

}  // namespace
}  // namespace vmem::migration
