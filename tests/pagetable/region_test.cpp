#include "pagetable/region.hpp"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "pagetable/address_space.hpp"

namespace vmem::pagetable {
namespace {

struct Fixture {
  std::unique_ptr<AddressSpace> space = std::move(*AddressSpace::create(0x7d0000000000, std::uint64_t{1} << 30));
  Region* region = *space->add(16, 0);
};

// Recomputes the counters. REQUIRES: no concurrent changes.
void expect_counters_true(const Region& region) {
  std::uint32_t unreadable = 0, unwritable = 0, attention = 0;
  for (std::uint32_t i = 0; i < region.page_count; ++i) {
    const PageState state(region.pages[i].state.load());
    unreadable += !state.allows(Access::read);
    unwritable += !state.allows(Access::write);
    attention += state.has(PageState::kAttention);
  }
  EXPECT_EQ(region.unreadable.load(), unreadable);
  EXPECT_EQ(region.unwritable.load(), unwritable);
  EXPECT_EQ(region.attention.load(), attention);
}

TEST(PageStates, WriteAccessIncludesReadAccess) {
  EXPECT_TRUE(PageState(0).with(Access::write).allows(Access::read));
  EXPECT_FALSE(PageState(0).with(Access::read).allows(Access::write));
  EXPECT_FALSE(PageState(0).allows(Access::read));
}

TEST(PageStates, CountersFollowRandomTransitions) {
  Fixture f;
  std::mt19937 random(7);
  for (int i = 0; i < 10'000; ++i) {
    Page& page = f.region->pages[random() % f.region->page_count];
    if (random() % 4 == 0) {
      take_notify(*f.region, page);
    } else {
      publish_state(*f.region, page, PageState(random() % 32).with(Access(random() % 3)));
    }
  }
  expect_counters_true(*f.region);
}

TEST(PageStates, ANotificationIsTakenByOneThreadOnlyAndNeverUndoesATransition) {
  Fixture f;
  Page& page = f.region->pages[0];
  std::atomic<int> taken{0};
  std::atomic<bool> stop{false};
  const auto take = [&] {
    while (!stop.load()) taken += take_notify(*f.region, page) ? 1 : 0;
  };
  std::thread a(take), b(take);
  for (int i = 0; i < 20'000; ++i) {
    publish_state(*f.region, page, PageState(0).with(Access(i % 3)).set(PageState::kNotify));
    EXPECT_EQ(PageState(page.state.load()).access(), Access(i % 3));
  }
  stop = true;
  a.join();
  b.join();
  taken += take_notify(*f.region, page) ? 1 : 0;
  // A notification offered again before it is taken counts once or twice, but never less often than
  // it was taken.
  EXPECT_GE(taken.load(), 1);
  EXPECT_LE(taken.load(), 20'000);
  expect_counters_true(*f.region);
}

}  // namespace
}  // namespace vmem::pagetable
