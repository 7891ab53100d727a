// Pages that begin a new life, and are written in it, while a transfer with the tier below is in
// flight. Versions start over: those of both lives are equal.
#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;
using tiers::Outcome;

enum class Protection : std::uint8_t { off, on };

class NewLife : public MoverTest, public ::testing::WithParamInterface<Protection> {
 protected:
  static constexpr std::uint32_t kPages = 16;
  static constexpr unsigned char kNewBytes = 0x77;

  void SetUp() override {
    start({.hbm_pages = 4, .host_pages = 8, .spill_pages = 16, .protect = GetParam() == Protection::on});
    user = &actor();
  }
  // Writes each page once, with its index.
  Region& filled(std::uint32_t pages) {
    Region& region = allocate(pages);
    for (std::uint32_t i = 0; i < pages; ++i)
      write_to_the_end(*user, writing(region, i), static_cast<unsigned char>(i));
    return region;
  }
  bool in_flight(const Region& region, std::uint32_t i) {
    return inside->mover.parts().transfers.busy_below(page(region, i));
  }
  // Frees the region into the cache of blocks and takes it again; then writes one of its pages.
  void begin_life_and_write(Region& region, std::uint32_t i) {
    ASSERT_EQ(page(region, i).version, 1u);
    region.life.fetch_add(1);
    write_to_the_end(*user, writing(region, i), kNewBytes);
    ASSERT_EQ(page(region, i).version, 1u);
    ASSERT_TRUE(in_flight(region, i)) << "the new bytes were written too late for this test";
  }
  // A page of which only the copy below is left, and a load of it.
  std::uint32_t recall_one(Region& region) {
    settle();
    std::uint32_t i = 0;
    while (i < region.page_count && !(below(region, i) && !in_host(region, i) && !page(region, i).has_frame())) ++i;
    EXPECT_LT(i, region.page_count) << "no page is only below";
    spill->hold_back(Direction::load);
    prefetch(reading(region, i));
    steps();
    EXPECT_TRUE(in_flight(region, i));
    return i;
  }
  void expect_new_bytes(Region& region, std::uint32_t i) {
    spill->let_go();
    settle();
    evict_to_the_end(writing(region, i));
    // Others take its frame, which would still have the bytes.
    for (std::uint32_t more = 1; more <= 4; ++more)
      write_to_the_end(*user, writing(region, (i + more) % region.page_count), 0x11);
    expect_bytes(*user, region, i, kNewBytes);
    expect_stored(region, i, kNewBytes);
  }
  Actor* user = nullptr;
};

TEST_P(NewLife, AStoreOfTheEarlierLifeDoesNotPassForThePagesBytes) {
  spill->hold_back(Direction::store);
  Region& region = filled(12);
  std::uint32_t i = 0;
  while (i < region.page_count && !in_flight(region, i)) ++i;
  ASSERT_LT(i, region.page_count) << "no store is in flight";
  begin_life_and_write(region, i);
  spill->let_go();
  settle();
  EXPECT_FALSE(below(region, i));
  expect_new_bytes(region, i);
}

TEST_P(NewLife, ALoadOfTheEarlierLifeDoesNotPassForThePagesBytes) {
  Region& region = filled(kPages);
  const std::uint32_t i = recall_one(region);
  begin_life_and_write(region, i);
  spill->let_go();
  settle();
  EXPECT_FALSE(in_host(region, i));
  expect_new_bytes(region, i);
}

TEST_P(NewLife, ALoadOfTheEarlierLifeThatFindsNothingDoesNotLoseThePage) {
  Region& region = filled(kPages);
  spill->answer_next(Direction::load, Outcome::lost);
  const std::uint32_t i = recall_one(region);
  begin_life_and_write(region, i);
  spill->let_go();
  settle();
  EXPECT_FALSE(state(region, i).has(PageState::kLost));
  expect_new_bytes(region, i);
}

INSTANTIATE_TEST_SUITE_P(Protection, NewLife, ::testing::Values(Protection::off, Protection::on),
                         [](const auto& each) { return each.param == Protection::on ? "Protected" : "Unprotected"; });

}  // namespace
}  // namespace vmem::migration
