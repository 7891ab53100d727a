// Copies of other nodes' pages on this node's disks, beside the program's own pages there.
#include "sharing/disk_copies.hpp"

#include <algorithm>
#include <thread>

#include "sharing/scripted_tiers.hpp"
#include "tiers/disk_fixture.hpp"
#include "tiers/tier_conformance.hpp"

namespace vmem::tiers {
namespace {

// The disks as the program's pages see them.
class DisksUnderTest {
 public:
  Tier& tier() { return copies_.disks(); }
  std::uint64_t budget_bytes() const { return 8 * kTierPage; }
  void wait_until_ready() { disk_.wait_until_ready(); }
  void aim(Transfer& transfer, std::size_t i) { disk_.aim(transfer, i); }
  void fill(std::size_t i, unsigned char value) { disk_.fill(i, value); }
  bool holds(std::size_t i, unsigned char value) { return disk_.holds(i, value); }

 private:
  ManualClock clock_;
  sharing::ScriptedNodes nodes_{clock_};
  DiskFixture disk_{kTierPage, 8 * kTierPage, uring()};
  sharing::DiskCopies copies_{nodes_, disk_.tier(), clock_, {.workers = 0, .on_ready = {}}};
};
INSTANTIATE_TYPED_TEST_SUITE_P(BesideCopies, TierConformance, DisksUnderTest);

}  // namespace
}  // namespace vmem::tiers

namespace vmem::sharing {
namespace {

using tiers::Direction;
using tiers::Grant;
using tiers::Outcome;
using tiers::SlotId;

class Copies : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kDiskPages = 40;  // of which copies may take 32
  static constexpr std::uint32_t kRegionPages = 300;
  Copies() { start(UINT64_MAX); }
  void start(std::uint64_t limit) {
    regions.clear();
    copies.reset();
    copies = std::make_unique<DiskCopies>(nodes, disks, clock,
                                          DiskCopies::Config{.limit_bytes = limit, .workers = 0, .on_ready = {}});
    open(0);
  }
  // The published region with this serial, at the slots from `first` on.
  void open(SlotId first, std::uint64_t serial = 5) {
    regions[first] = {copies->keep(std::make_shared<ScriptedSource>(first)), pagetable::Serial{serial}};
    EXPECT_EQ(*regions[first].source->lay_out(kSmallPage, kRegionPages), first);
  }
  void poll() {
    EXPECT_TRUE(copies->disks().poll(own_ended));
    EXPECT_TRUE(copies->sources().poll(ended));
  }
  tiers::Transfer transfer_of(SlotId slot) {
    const auto& [first, region] = *std::prev(regions.upper_bound(slot));
    return {.page = {region.serial, slot - first}, .version = 1, .slot = slot, .host = host.get(), .bytes = kSmallPage};
  }
  std::uint64_t submit(SlotId slot) {
    std::memset(host.get(), 0xee, kSmallPage);
    tiers::Transfer transfer = transfer_of(slot);
    EXPECT_TRUE(copies->sources().submit({&transfer, 1}));
    EXPECT_NE(transfer.id, 0u);
    EXPECT_EQ(transfer.slot, slot);
    return transfer.id;
  }
  const tiers::Completion* completion(std::uint64_t id) {
    const auto found = std::ranges::find(ended, id, &tiers::Completion::id);
    return found == ended.end() ? nullptr : &*found;
  }
  // Polls until the load has ended, and, unless the disks hold it, what came of it.
  tiers::Completion load(SlotId slot) {
    const std::uint64_t id = submit(slot);
    for (int i = 0; i < 4; ++i) poll();
    const tiers::Completion* const found = completion(id);
    EXPECT_NE(found, nullptr) << "the load has not ended";
    if (found == nullptr) return {};
    if (found->outcome == Outcome::done) {
      const tiers::Transfer transfer = transfer_of(slot);
      std::vector<std::byte> expected(kSmallPage);
      fill_page(expected.data(), static_cast<std::uint64_t>(transfer.page.serial), transfer.page.granule);
      EXPECT_EQ(std::memcmp(expected.data(), host.get(), kSmallPage), 0) << slot;
    }
    return *found;
  }
  void scan(SlotId first, std::uint32_t pages) {
    for (SlotId slot = first; slot < first + pages; ++slot) EXPECT_EQ(load(slot).outcome, Outcome::done) << slot;
  }
  // From here on both rates are known. By loads of the program's own pages from the disks.
  void measure(std::uint64_t nodes_us, std::uint64_t disks_us) {
    nodes.page_us = nodes_us;
    disks.page_us = disks_us;
    scan(100, 64);
    const SlotId slot = own_slot();
    own(slot, Direction::store);
    for (int i = 0; i < 64; ++i) own(slot, Direction::load);
    copies->disks().release(slot);
    nodes.pages = disks.loads = disks.stores = 0;
  }
  SlotId own_slot(std::uint64_t pages = 1) {
    const auto grant = copies->disks().allocate(pages * kSmallPage);
    EXPECT_TRUE(grant && grant->grant == Grant::granted);
    return grant->slot;
  }
  void own(SlotId slot, Direction direction) {
    tiers::Transfer transfer{.version = 9, .slot = slot, .host = host.get(), .bytes = kSmallPage};
    transfer.direction = direction;
    ASSERT_TRUE(copies->disks().submit({&transfer, 1}));
    poll();
    ASSERT_FALSE(own_ended.empty());
    EXPECT_EQ(own_ended.back().id, transfer.id);
    EXPECT_EQ(own_ended.back().outcome, Outcome::done);
  }
  // Slots `first` and the following have copies.
  void make_copies(std::uint32_t pages, SlotId first = 0) {
    measure(1000, 10);
    for (int round = 0; round < 2; ++round) scan(first, pages);
    EXPECT_EQ(disks.stores, pages);
    nodes.pages = disks.loads = disks.stores = 0;
  }
  std::uint64_t bytes() const { return copies->statistics().bytes; }

  struct Region {
    std::shared_ptr<tiers::PageSource> source;
    pagetable::Serial serial{};
  };
  ManualClock clock;
  ScriptedNodes nodes{clock};
  ScriptedDisks disks{clock, kDiskPages* kSmallPage};
  std::unique_ptr<std::byte[]> host = std::make_unique<std::byte[]>(kSmallPage);
  std::vector<tiers::Completion> ended, own_ended;
  std::unique_ptr<DiskCopies> copies;
  std::map<SlotId, Region> regions;
};

// ---- admission ----

TEST_F(Copies, AScanOfATableOnceWritesNothing) {
  measure(1000, 10);
  scan(0, 32);
  EXPECT_EQ(disks.stores, 0u);
  EXPECT_EQ(disks.used_bytes(), 0u);
}

TEST_F(Copies, WhatIsFetchedAgainIsWrittenAndComesFromTheDisksFromThenOn) {
  measure(1000, 10);
  scan(0, 20);
  scan(0, 20);
  EXPECT_EQ(nodes.pages, 40u);
  EXPECT_EQ(disks.stores, 20u);
  EXPECT_EQ(bytes(), 20 * kSmallPage);
  scan(0, 20);
  EXPECT_EQ(nodes.pages, 40u);
  EXPECT_EQ(disks.loads, 20u);
  EXPECT_EQ(copies->statistics().stored_pages, 20u);
  EXPECT_EQ(copies->statistics().loaded_pages, 20u);
}

TEST_F(Copies, WhileNodesAreFasterNothingIsWritten) {
  measure(100, 200);
  for (int round = 0; round < 3; ++round) scan(0, 20);
  EXPECT_EQ(nodes.pages, 60u);
  EXPECT_EQ(disks.stores, 0u);
}

TEST_F(Copies, WithoutARateAShareIsWrittenAndMeasuresTheDisks) {
  nodes.page_us = 1000;
  disks.page_us = 10;
  for (int round = 0; round < 2; ++round) scan(0, 32);
  EXPECT_EQ(disks.stores, CopyRule::kTrialPages);
  scan(0, 32);  // the first 16 from the disks; then their rate is known
  EXPECT_EQ(disks.loads, CopyRule::kTrialPages);
  EXPECT_EQ(disks.stores, 32u);
}

TEST_F(Copies, ACopyIsNotReadWhileNodesAreFaster) {
  make_copies(20);
  nodes.page_us = 1;
  scan(0, 20);
  EXPECT_EQ(disks.loads, 20u) << "the nodes' rate is not known yet";
  scan(170, 60);
  disks.loads = nodes.pages = 0;
  scan(0, 20);
  EXPECT_EQ(nodes.pages, 20u);
  EXPECT_EQ(disks.loads, 0u);
  EXPECT_EQ(bytes(), 20 * kSmallPage) << "it is kept";
}

TEST_F(Copies, PagesWithoutBytesAreNotWritten) {
  measure(1000, 10);
  nodes.came_from = tiers::CameFrom::here;
  for (int round = 0; round < 3; ++round) scan(0, 10);
  EXPECT_EQ(disks.stores, 0u);
}

TEST_F(Copies, APageOfWhichOneNodeIsLeftIsWrittenAlsoToSlowerDisks) {
  measure(100, 1000);
  nodes.came_from = tiers::CameFrom::last_source;
  scan(0, 10);
  EXPECT_EQ(disks.stores, 0u);
  scan(0, 10);
  EXPECT_EQ(disks.stores, 10u);
}

// The store is in flight when the load ends, and when the next load of the page comes.
TEST_F(Copies, ALoadDoesNotWaitForTheDisksToWrite) {
  measure(1000, 10);
  scan(0, 1);
  disks.holds = true;
  EXPECT_EQ(load(0).outcome, Outcome::done);
  EXPECT_EQ(disks.in_flight().size(), 1u);
  std::memset(host.get(), 0, kSmallPage);  // the host slot is another page's by now
  EXPECT_EQ(load(0).outcome, Outcome::done);
  EXPECT_EQ(disks.in_flight().size(), 1u);
  disks.holds = false;
  nodes.pages = 0;
  scan(0, 1);
  scan(0, 1);
  EXPECT_EQ(nodes.pages + disks.loads, 2u);
  EXPECT_GE(disks.loads, 1u);
}

TEST_F(Copies, AStoreWaitsForASlotThatIsBeingMade) {
  measure(1000, 10);
  scan(0, 4);
  disks.later = true;
  scan(0, 4);
  EXPECT_EQ(disks.stores, 0u);
  disks.later = false;
  for (int i = 0; i < 2; ++i) poll();
  EXPECT_EQ(disks.stores, 4u);
}

// ---- failures ----

TEST_F(Copies, ADamagedCopyIsDroppedAndThePageFetched) {
  make_copies(10);
  disks.slots.begin()->second.page.reset();
  scan(0, 10);
  EXPECT_EQ(nodes.pages, 1u);
  EXPECT_EQ(disks.loads, 9u);
  EXPECT_EQ(disks.stores, 1u) << "it was fetched again";
}

TEST_F(Copies, ADiskThatFailsAReadCostsAFetchAndNoError) {
  make_copies(10);
  disks.fails_loads = Outcome::failed;
  scan(0, 10);
  EXPECT_EQ(nodes.pages, 10u);
  EXPECT_EQ(bytes(), 10 * kSmallPage) << "another try may succeed";
  disks.unreadable = true;
  scan(0, 10);
  EXPECT_EQ(nodes.pages, 20u);
  EXPECT_EQ(disks.used_bytes() + bytes(), 2 * bytes()) << "dropped, then stored anew";
  EXPECT_EQ(disks.stores, 10u);
}

TEST_F(Copies, DisksThatRefuseARequestCostAFetchAndNoError) {
  make_copies(4);
  disks.refuses = true;
  scan(0, 4);
  EXPECT_EQ(nodes.pages, 4u);
}

TEST_F(Copies, AfterAStoreThatFailedNoPageGetsACopyForAWhile) {
  measure(1000, 10);
  scan(0, 4);
  disks.fails_stores = true;
  scan(0, 4);
  EXPECT_EQ(bytes(), 0u);
  EXPECT_EQ(disks.used_bytes(), 0u);
  disks.fails_stores = false;
  nodes.page_us = 10'000;
  scan(0, 4);
  EXPECT_EQ(disks.stores, 0u);
  clock.advance(1'000'000);
  scan(0, 4);
  EXPECT_EQ(disks.stores, 4u);
}

TEST_F(Copies, APageWhoseSourcesAreGoneIsReadFromTheDisks) {
  make_copies(4);
  nodes.fails = Outcome::lost;
  scan(0, 4);
  EXPECT_EQ(load(5).outcome, Outcome::lost) << "a page without a copy";
}

TEST_F(Copies, NodesThatAreFasterAndThenGoneLeaveTheCopy) {
  make_copies(20);
  nodes.page_us = 1;
  scan(170, 60);
  for (const Outcome outcome : {Outcome::lost, Outcome::failed}) {
    disks.loads = 0;
    nodes.fails = outcome;
    scan(0, 20);
    EXPECT_EQ(disks.loads, 20u);
  }
}

TEST_F(Copies, APageIsLostOnlyIfItsCopyIsDamagedToo) {
  make_copies(4);
  nodes.fails = Outcome::lost;
  disks.fails_loads = Outcome::failed;
  const auto failed = load(0);
  EXPECT_EQ(failed.outcome, Outcome::failed);
  EXPECT_EQ(failed.error.message, "disks");
  disks.fails_loads = Outcome::lost;
  const auto lost = load(1);
  EXPECT_EQ(lost.outcome, Outcome::lost);
  EXPECT_EQ(lost.error.message, "nodes");
  disks.fails_loads.reset();
  EXPECT_EQ(load(0).outcome, Outcome::done);
  EXPECT_EQ(load(1).outcome, Outcome::lost);
}

// ---- room ----

TEST_F(Copies, TheProgramsPagesTakeTheRoomOfCopies) {
  make_copies(30);
  EXPECT_EQ(copies->disks().usage().used_bytes, 0u);
  std::vector<SlotId> own_slots;
  for (std::uint64_t page = 0; page < kDiskPages; ++page) {
    own_slots.push_back(own_slot());
    EXPECT_EQ(copies->disks().usage().used_bytes, (page + 1) * kSmallPage);
    EXPECT_LE(disks.used_bytes(), std::max((page + 1), kDiskPages * 4 / 5) * kSmallPage);
  }
  EXPECT_EQ(bytes(), 0u);
  EXPECT_EQ(copies->disks().allocate(kSmallPage)->grant, Grant::full);
  scan(0, 30);
  EXPECT_EQ(disks.stores, 0u) << "no room";
  for (const SlotId slot : own_slots) copies->disks().release(slot);
  scan(0, 30);
  EXPECT_EQ(disks.stores, 30u);
}

TEST_F(Copies, TheLeastRecentlyLoadedCopiesMakeRoomForTheProgram) {
  make_copies(32);
  scan(0, 1);
  own_slot(4);
  EXPECT_EQ(bytes(), 28 * kSmallPage);
  nodes.pages = 0;
  scan(0, 1);
  EXPECT_EQ(nodes.pages, 0u);
  scan(1, 4);
  EXPECT_EQ(nodes.pages, 4u);
}

// As a chunk of a disk's file that has slots of one size.
TEST_F(Copies, AllCopiesGoIfAPageOfAnotherSizeFindsNoRoomElse) {
  make_copies(4);
  disks.one_size = true;
  own_slot(2);
  EXPECT_EQ(bytes(), 0u);
  disks.one_size = false;
  scan(0, 4);
  EXPECT_EQ(disks.stores, 0u) << "not at once: the program may need more";
  clock.advance(1'000'000);
  scan(0, 4);
  EXPECT_EQ(disks.stores, 4u);
}

TEST_F(Copies, ASlotInUseComesFreeWhenItsTransferEnds) {
  make_copies(32);
  disks.holds = true;
  const std::uint64_t id = submit(3);
  const auto grant = copies->disks().allocate(kDiskPages * kSmallPage);
  ASSERT_TRUE(grant);
  EXPECT_EQ(grant->grant, Grant::later) << "a copy is being read";
  EXPECT_EQ(bytes(), 0u);
  disks.holds = false;
  poll();
  EXPECT_EQ(completion(id)->outcome, Outcome::done);
  own_slot(kDiskPages);
}

TEST_F(Copies, AStoreOfACopyThatTheProgramDisplacedIsForgotten) {
  measure(1000, 10);
  scan(0, 2);
  disks.holds = true;
  load(0);
  EXPECT_EQ(copies->disks().allocate(kDiskPages * kSmallPage)->grant, Grant::later);
  disks.holds = false;
  poll();
  EXPECT_EQ(disks.used_bytes(), 0u);
  own_slot(kDiskPages);
}

TEST_F(Copies, WithinTheLimitAPageTakesThePlaceOfACopyThatWasNotLoadedSince) {
  start(8 * kSmallPage);
  make_copies(8);
  scan(20, 8);
  EXPECT_EQ(disks.stores, 0u);
  scan(20, 8);
  EXPECT_EQ(disks.stores, 8u);
  EXPECT_EQ(bytes(), 8 * kSmallPage);
  EXPECT_EQ(copies->statistics().limit_bytes, 8 * kSmallPage);
  nodes.pages = 0;
  scan(20, 8);
  EXPECT_EQ(nodes.pages, 0u);
}

TEST_F(Copies, AScanOfMoreThanTheLimitKeepsTheCopiesThatItHas) {
  start(8 * kSmallPage);
  make_copies(8);
  for (int round = 0; round < 3; ++round) {
    nodes.pages = disks.loads = 0;
    scan(0, 20);
    EXPECT_EQ(disks.loads, 8u) << round;
    EXPECT_EQ(nodes.pages, 12u) << round;
  }
  EXPECT_EQ(disks.stores, 0u);
}

// ---- regions ----

TEST_F(Copies, ARegionThatEndsReleasesItsSlots) {
  make_copies(10);
  open(kRegionPages, 6);
  for (int round = 0; round < 2; ++round) scan(kRegionPages, 5);
  EXPECT_EQ(disks.used_bytes(), 15 * kSmallPage);
  std::thread([this] { regions.erase(0); }).join();
  EXPECT_EQ(bytes(), 5 * kSmallPage);
  EXPECT_EQ(disks.used_bytes(), 15 * kSmallPage) << "only the mover's calls release slots";
  EXPECT_EQ(copies->disks().usage().used_bytes, 0u);
  poll();
  EXPECT_EQ(disks.used_bytes(), 5 * kSmallPage);
  nodes.pages = 0;
  scan(kRegionPages, 5);
  EXPECT_EQ(nodes.pages, 0u);
}

TEST_F(Copies, ARegionThatEndsDuringAStoreReleasesItsSlotAfterIt) {
  measure(1000, 10);
  scan(0, 1);
  disks.holds = true;
  load(0);
  regions.erase(0);
  open(0, 6);  // at the same slots
  disks.holds = false;
  poll();
  EXPECT_EQ(disks.used_bytes(), 0u);
  EXPECT_EQ(bytes(), 0u);
  nodes.pages = 0;
  scan(0, 1);
  EXPECT_EQ(nodes.pages, 1u);
}

TEST_F(Copies, ALaterVersionNeverGetsThePageOfAnEarlierOne) {
  make_copies(10);
  regions.erase(0);
  open(0, 6);
  for (int round = 0; round < 3; ++round) scan(0, 10);  // compares the bytes
  EXPECT_EQ(nodes.pages, 20u);
  // A slot that is the wrong page's is found out by what the disks know of it.
  for (auto& [slot, held] : disks.slots)
    if (held.page) held.page->first.serial = pagetable::Serial{5};
  scan(0, 10);
  EXPECT_EQ(nodes.pages, 30u);
}

// ---- what else passes through ----

TEST_F(Copies, LoadsOfOtherSourcesPass) {
  tiers::Transfer transfer = transfer_of(1);
  transfer.slot = 5 * kRegionPages;
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(copies->sources().submit({&transfer, 1}));
    for (int i = 0; i < 3; ++i) poll();
    ASSERT_NE(completion(transfer.id), nullptr);
  }
  EXPECT_EQ(disks.stores, 0u);
}

TEST_F(Copies, APageThatSomebodyWaitsForIsHurriedWhereItIsLoaded) {
  make_copies(1);
  auto& queues = dynamic_cast<tiers::QueueingTier&>(copies->sources());
  EXPECT_NE(queues.queue(0), queues.queue(1));
  EXPECT_EQ(queues.queue(1), 7u);
  const std::uint64_t id = submit(1);
  queues.hurry(id);
  EXPECT_EQ(nodes.hurried, std::vector{nodes.in_flight().front().id});
  queues.hurry(submit(0));
  EXPECT_EQ(nodes.hurried.size(), 1u);
  poll();
}

}  // namespace
}  // namespace vmem::sharing
