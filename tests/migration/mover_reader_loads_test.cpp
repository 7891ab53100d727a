// Pages of frozen regions that are loaded from below host memory for other nodes.
#include <gmock/gmock.h>

#include <list>

#include "migration/mover_published.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

constexpr std::uint32_t kMost = 16;  // that may wait for one lender

class ReaderLoads : public Freeze {
 protected:
  // Most of its pages are below host memory.
  Region& published(std::uint32_t pages) {
    Region& region = allocate(pages);
    for (std::uint32_t i = 0; i < pages; ++i)
      write_to_the_end(actor(), writing(region, i), static_cast<unsigned char>(i + 1));
    settle();
    EXPECT_TRUE(freeze(region));
    return region;
  }
  bool is_below(const Region& region, std::uint32_t index) const {
    return !page(region, index).has_frame() && !page(region, index).slot_current();
  }
  void open(std::list<OpenPageRequest>& opens, Region& region, std::uint32_t index) {
    OpenPageRequest& open = opens.emplace_back();
    open.run = {&region, index, 1};
    open.for_other_node = true;
    mover->post(open);
  }
  std::list<OpenPageRequest> open_all_below(Region& region) {
    std::list<OpenPageRequest> opens;
    for (std::uint32_t i = 0; i < region.page_count; ++i)
      if (is_below(region, i)) open(opens, region, i);
    EXPECT_GE(opens.size(), 2 * kMost);
    return opens;
  }
  // Time goes on until all are done. Returns how many were opened.
  std::size_t end(std::list<OpenPageRequest>& opens) {
    std::size_t opened = 0;
    for (OpenPageRequest& open : opens) {
      EXPECT_TRUE(step_until([&] {
        now_us += 100;
        return open.done();
      }));
      if (!open.result()) continue;
      ++opened;
      close_page(*open.run.region, open.run.first);
    }
    return opened;
  }
};

TEST_F(ReaderLoads, ALoadForAnotherNodeEndsAfterASecond) {
  start({.hbm_pages = 2, .host_pages = 2, .spill_pages = 8});
  Region& region = published(6);
  std::uint32_t below = 0;
  while (below < 6 && !is_below(region, below)) ++below;
  ASSERT_LT(below, 6u);
  spill->hold_back(Direction::load);
  OpenPageRequest open;
  open.run = {&region, below, 1};
  open.for_other_node = true;
  mover->post(open);
  steps();
  now_us += 900'000;
  steps();
  EXPECT_FALSE(open.done());
  now_us += 200'000;
  ASSERT_TRUE(step_until([&] { return open.done(); }));
  ASSERT_FALSE(open.result());
  EXPECT_EQ(open.result().error().status, VMEM_ERROR_TIMEOUT);
  spill->let_go();
  settle();
  EXPECT_TRUE(opens_here(region, below));
}

// Or else the pages of a silent lender would take all places that a reader has here.
TEST_F(ReaderLoads, FewWaitForOneLender) {
  start({.hbm_pages = 2, .host_pages = 4, .spill_pages = 64});
  Region& region = published(40);
  std::uint32_t here = region.page_count - 1;
  while (is_below(region, here)) --here;
  spill->hold_back(Direction::load);
  std::list<OpenPageRequest> opens = open_all_below(region);
  steps();
  std::uint32_t refused = 0;
  for (OpenPageRequest& open : opens) {
    if (!open.done()) continue;
    ASSERT_FALSE(open.result());
    EXPECT_EQ(open.result().error().status, VMEM_ERROR_TIMEOUT);
    ++refused;
  }
  EXPECT_EQ(refused, opens.size() - kMost) << "at once";
  EXPECT_TRUE(opens_here(region, here));
  spill->let_go();
  EXPECT_EQ(end(opens), kMost);
  settle();
  EXPECT_TRUE(opens_here(region, opens.back().run.first)) << "which was refused before";
}

TEST_F(ReaderLoads, ThoseThatTookTooLongMakeRoomForOthers) {
  start({.hbm_pages = 2, .host_pages = 4, .spill_pages = 64});
  Region& region = published(40);
  spill->hold_back(Direction::load);
  std::list<OpenPageRequest> silent = open_all_below(region);
  steps();
  now_us += 1'100'000;
  EXPECT_EQ(end(silent), 0u);
  spill->let_go();
  settle();
  std::list<OpenPageRequest> later = open_all_below(region);
  EXPECT_EQ(end(later), kMost);
}

TEST_F(ReaderLoads, ThoseThatFailedMakeRoomForOthers) {
  start({.hbm_pages = 2, .host_pages = 4, .spill_pages = 64});
  Region& region = published(40);
  for (std::uint32_t i = 0; i < 8 * kMost; ++i) spill->answer_next(Direction::load, tiers::Outcome::failed);
  std::list<OpenPageRequest> unread = open_all_below(region);
  EXPECT_EQ(end(unread), 0u);
  settle();
  spill->forget_answers();
  std::list<OpenPageRequest> later = open_all_below(region);
  EXPECT_EQ(end(later), kMost);
}

// The directory may know of the page already, and must not hear that it is gone.
TEST_F(OpenRegion, APageThatIsOnItsWayIsNotSaidToBeGone) {
  start({.hbm_pages = 2, .host_pages = 8, .files = true});
  ASSERT_TRUE(space->withdraw(32, 32));
  const auto opened = open(2);
  ASSERT_TRUE(opened) << opened.error().message;
  Region& region = **opened;
  EXPECT_FALSE(opens_here(region, 1));
  EXPECT_FALSE(comes);
  files->hold_back();
  Actor& reader = actor();
  const auto reads = begin(reader, reading(region, 1));
  ASSERT_TRUE(step_until([&] { return files->loads == 1; }));
  EXPECT_FALSE(opens_here(region, 1));
  EXPECT_TRUE(comes);
  files->let_go();
  ASSERT_TRUE(complete(*reads));
  release(reader, reading(region, 1));
  finish_work(reader);
  settle();
  EXPECT_TRUE(opens_here(region, 1));
}

}  // namespace
}  // namespace vmem::migration
