// Pages of a published region, loaded from the nodes that have them.
#include "sharing/shared_tier.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "sharing/sharing_fixture.hpp"

namespace vmem::sharing {
namespace {

using rdma::wire::Answer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using tiers::Outcome;

TEST_F(Sharing, TheRegionLiesWhereItsPublisherHasIt) {
  const auto place = source->place();
  ASSERT_TRUE(place);
  EXPECT_EQ(place->first_granule, 40u);
  EXPECT_EQ(place->page_shift, 0u);
  EXPECT_EQ(place->serial, kSerial);
}

TEST_F(Sharing, APageComesFromTheNodeThatHasIt) {
  at(kFirst).holder.hold(3);
  finder.where[3] = {kFirst};
  EXPECT_EQ(load(3).outcome, Outcome::done);
  EXPECT_TRUE(holds(3));
  EXPECT_THAT(finder.arrived, ElementsAre(3));
  EXPECT_EQ(tier->statistics().pages, 1u);
  EXPECT_EQ(tier->statistics().bytes, kPage);
}

TEST_F(Sharing, APageThatWasNeverWrittenIsZerosAndCostsNoMessage) {
  EXPECT_EQ(load(2).outcome, Outcome::done);
  EXPECT_TRUE(
      std::all_of(memory[2].get(), memory[2].get() + kPage, [](std::byte byte) { return byte == std::byte{}; }));
  EXPECT_EQ(at(kFirst).holder.asked + at(kSecond).holder.asked, 0);
}

TEST_F(Sharing, APageThatIsTheSameAsInTheVersionBeforeIsNotSent) {
  at(kFirst).holder.hold(3);
  own.hold(3);
  finder.where[3] = {kFirst};
  open(pagetable::Serial{4});
  EXPECT_EQ(load(3).outcome, Outcome::done);
  EXPECT_TRUE(holds(3));
  EXPECT_THAT(finder.arrived, ElementsAre(3));
  EXPECT_EQ(tier->statistics().pages, 0u);
  EXPECT_EQ(tier->statistics().reused, 1u);
  EXPECT_EQ(at(kFirst).server->statistics().pages, 0u);
  EXPECT_EQ(at(kFirst).server->statistics().same, 1u);
  EXPECT_EQ(own.lent_out, 0);
}

TEST_F(Sharing, ALoadSaysWhetherBytesCameAndFromTheLastSource) {
  for (const std::uint32_t page : {1u, 3u, 4u}) at(kFirst).holder.hold(page);
  own.hold(3);
  finder.where[1] = finder.where[3] = finder.where[4] = {kFirst};
  finder.last = {4};
  open(pagetable::Serial{4});
  EXPECT_EQ(load(1).came_from, tiers::CameFrom::anywhere);
  EXPECT_EQ(load(2).came_from, tiers::CameFrom::here) << "zeros";
  EXPECT_EQ(load(3).came_from, tiers::CameFrom::here) << "of the version before";
  EXPECT_EQ(load(4).came_from, tiers::CameFrom::last_source);
}

TEST_F(Sharing, APageThatHasChangedSinceTheVersionBeforeIsSent) {
  for (const std::uint32_t page : {1u, 2u}) at(kFirst).holder.hold(page);
  own.hold(1);
  own.pages[1][kPage - 1] ^= std::byte{1};
  finder.where[1] = finder.where[2] = {kFirst};
  open(pagetable::Serial{4});
  EXPECT_EQ(load(1).outcome, Outcome::done);
  EXPECT_TRUE(holds(1));
  EXPECT_EQ(load(2).outcome, Outcome::done) << "it is not here";
  EXPECT_TRUE(holds(2));
  EXPECT_EQ(tier->statistics().pages, 2u);
  EXPECT_EQ(tier->statistics().reused, 0u);
  EXPECT_EQ(at(kFirst).server->statistics().same, 0u);
  EXPECT_EQ(own.lent_out, 0);
}

TEST_F(Sharing, ASourceThatDoesNotHaveThePageCostsNothingOfTheVersionBefore) {
  at(kSecond).holder.hold(1);
  own.hold(1);
  finder.where[1] = {kFirst, kSecond};
  open(pagetable::Serial{4});
  EXPECT_EQ(load(1).outcome, Outcome::done);
  EXPECT_TRUE(holds(1));
  EXPECT_EQ(tier->statistics().reused, 1u);
}

TEST_F(Sharing, ASourceWithoutThePageIsReportedAndTheNextOneAsked) {
  at(kSecond).holder.hold(1);
  finder.where[1] = {kFirst, kSecond};
  EXPECT_EQ(load(1).outcome, Outcome::done);
  EXPECT_TRUE(holds(1));
  EXPECT_THAT(finder.reported, ElementsAre(std::pair(1u, kFirst)));
}

TEST_F(Sharing, APageOfOtherBytesIsReportedAndNeverSeen) {
  at(kFirst).holder.hold(1);
  at(kFirst).holder.pages[1][4096 * 3 + 5] ^= std::byte{1};
  at(kSecond).holder.hold(1);
  finder.where[1] = {kFirst, kSecond};
  EXPECT_EQ(load(1).outcome, Outcome::done);
  EXPECT_TRUE(holds(1));
  EXPECT_THAT(finder.reported, ElementsAre(std::pair(1u, kFirst)));
  EXPECT_EQ(tier->statistics().mismatches, 1u);
}

TEST_F(Sharing, BytesThatMustNotBeUsedAreFoundAgain) {
  at(kFirst).holder.hold(3);
  finder.where[3] = {kFirst};
  finder.refused = 1;  // the first fetch: the directory has denied the page meanwhile
  EXPECT_EQ(load(3).outcome, Outcome::done);
  EXPECT_EQ(finder.finds, 2);
  EXPECT_THAT(finder.arrived, ElementsAre(3));
  EXPECT_TRUE(finder.reported.empty()) << "the source has the page";
  EXPECT_TRUE(holds(3));
}

TEST_F(Sharing, ABusySourceIsAskedAgain) {
  at(kFirst).holder.hold(1);
  at(kFirst).holder.refusals[1] = Answer::again;
  finder.where[1] = {kFirst};
  const std::uint64_t id = submit(1);
  until([&] { return at(kFirst).holder.asked == 5; });
  EXPECT_TRUE(finder.reported.empty());
  at(kFirst).holder.refusals.clear();
  until([&] { return completion(id) != nullptr; });
  EXPECT_EQ(completion(id)->outcome, Outcome::done);
  EXPECT_EQ(finder.finds, 1);
}

TEST_F(Sharing, APageThatNobodyHasIsLost) {
  finder.nowhere.insert(4);
  const auto lost = load(4);
  EXPECT_EQ(lost.outcome, Outcome::lost);
  EXPECT_EQ(lost.error.status, VMEM_ERROR_LOST);
  finder.where[5] = {kFirst};
  EXPECT_EQ(load(5).outcome, Outcome::lost) << "the only source does not have it";
}

TEST_F(Sharing, ASilentSourceCostsItsDeadlineAndThenTheNextIsAsked) {
  at(kFirst).holder.hold(1);
  at(kSecond).holder.hold(1);
  finder.where[1] = {kFirst, kSecond};
  fabric.set_silence(kFirst, true);
  const std::uint64_t began = clock.now_us();
  EXPECT_EQ(load(1).outcome, Outcome::done);
  EXPECT_TRUE(holds(1));
  EXPECT_GE(clock.now_us() - began, times.request_us);
  EXPECT_LE(clock.now_us() - began, times.request_us + 500'000);
  EXPECT_TRUE(finder.reported.empty()) << "silence proves nothing";
}

TEST_F(Sharing, ASourceThatIsAwayIsWaitedForUntilTheDeadline) {
  at(kFirst).holder.hold(1);
  finder.where[1] = {kFirst};
  fabric.set_partition(kFirst, kReader, true);
  const std::uint64_t began = clock.now_us();
  const auto failed = load(1);
  EXPECT_EQ(failed.outcome, Outcome::failed);
  EXPECT_EQ(failed.error.status, VMEM_ERROR_TIMEOUT);
  EXPECT_THAT(failed.error.message, HasSubstr("page 1 of the published region 5 is on node 1, which is not connected"));
  EXPECT_LE(clock.now_us() - began, times.patience_us + 1'000'000);
  fabric.set_partition(kFirst, kReader, false);
  EXPECT_EQ(load(1).outcome, Outcome::done);
}

TEST_F(Sharing, ADirectoryThatDoesNotAnswerIsNotWaitedForLonger) {
  finder.silent = true;
  const std::uint64_t began = clock.now_us();
  const auto failed = load(1);
  EXPECT_EQ(failed.outcome, Outcome::failed);
  EXPECT_THAT(failed.error.message, HasSubstr("nobody said in time who has page 1"));
  EXPECT_LE(clock.now_us() - began, times.patience_us + 1'000'000);
  ASSERT_EQ(finder.unanswered.size(), 1u);
  finder.unanswered.front()(PageSources{{kFirst}});  // too late: nothing happens
  turn();
  EXPECT_EQ(at(kFirst).holder.asked, 0);
}

TEST_F(Sharing, ASourceThatIsFoundTooLateIsNotWaitedForLonger) {
  at(kFirst).holder.hold(1);
  finder.silent = true;
  const std::uint64_t began = clock.now_us();
  const std::uint64_t id = submit(1);
  until([&] { return clock.now_us() - began > times.patience_us - 1'000'000; });
  fabric.set_silence(kFirst, true);
  finder.unanswered.front()(PageSources{{kFirst}});
  until([&] { return completion(id) != nullptr; });
  EXPECT_LE(clock.now_us() - began, times.patience_us + 1'000'000);
}

TEST_F(Sharing, ATierThatEndsWaitsForNobodyLongerThanAFetch) {
  finder.silent = true;
  submit(1);
  turn();
  std::atomic<bool> hurried = false;
  // The tier's removal turns the reader's node only.
  std::thread time([&] {
    while (!hurried) clock.advance(1000), std::this_thread::yield();
  });
  source.reset();
  tier.reset();
  hurried = true;
  time.join();
}

TEST_F(Sharing, StoresAreRefused) {
  tiers::Transfer transfer;
  transfer.slot = slots;
  transfer.direction = tiers::Direction::store;
  EXPECT_FALSE(tier->submit({&transfer, 1}));
}

// Under any accidents of the network, what is loaded is right.
TEST_F(Sharing, NoByteIsWrongWhateverHappensToMessages) {
  for (std::uint32_t page = 0; page < kPages; ++page) {
    for (const NodeId id : {kFirst, kSecond}) at(id).holder.hold(page);
    finder.where[page] = page % 2 == 0 ? std::vector{kFirst, kSecond} : std::vector{kSecond, kFirst};
  }
  const rdma::Faults faults{.drop = 0.05,
                            .duplicate = 0.05,
                            .delay = 0.2,
                            .corrupt_header = 0.02,
                            .corrupt_payload = 0.05,
                            .misdirect = 0.02};
  reader_faults->set_faults(faults);
  for (const auto& [id, server] : servers) server->faults->set_faults(faults);
  int done = 0;
  for (std::uint32_t i = 0; i < 200; ++i) {
    const auto loaded = load(i % kPages);
    if (loaded.outcome != Outcome::done) continue;
    ++done;
    ASSERT_TRUE(holds(i % kPages)) << i;
  }
  EXPECT_GT(done, 150);
  EXPECT_GT(tier->statistics().retries, 0u);
}

TEST_F(Sharing, WhatTheNodePublishedAndLoadsIsSaidToBeLostHere) {
  at(kFirst).holder.hold(1);
  finder.where[1] = {kFirst};
  EXPECT_EQ(load(1).outcome, tiers::Outcome::done);
  EXPECT_TRUE(finder.own_lost.empty());
  const auto own_source = tier->open({.name = "weights",
                                      .serial = kSerial,
                                      .bytes = kPages * kPage,
                                      .page_bytes = kPage,
                                      .first_granule = 40,
                                      .own = true,
                                      .key = std::make_shared<RegionKey>(*RegionKey::of(key.bytes()))});
  slots = *own_source->lay_out(kPage, kPages);
  EXPECT_EQ(load(1).outcome, tiers::Outcome::done);
  EXPECT_EQ(finder.own_lost, std::vector<std::uint32_t>{1});
}

}  // namespace
}  // namespace vmem::sharing
