// Pages of a published region that come over a slow network, with copies on disks.
#include <gmock/gmock.h>

#include "sharing/disk_copies.hpp"
#include "sharing/scripted_tiers.hpp"
#include "sharing/sharing_fixture.hpp"

namespace vmem::sharing {
namespace {

using tiers::Outcome;

// A page takes 20 ms from a node and 1 ms from the disks.
class SharedCopies : public Sharing {
 protected:
  SharedCopies() {
    fabric.set_latency(10'000);
    for (std::uint32_t page = 0; page < kPages; ++page) {
      at(kFirst).holder.hold(page);
      finder.where[page] = {kFirst};
    }
    reopen();
  }
  ~SharedCopies() override { source.reset(); }
  // As the version of the region that has this serial.
  void reopen() {
    source.reset();
    source = copies.keep(tier->open({.name = "weights",
                                     .serial = kSerial,
                                     .bytes = kPages * kPage,
                                     .page_bytes = kPage,
                                     .first_granule = 40,
                                     .key = std::make_shared<RegionKey>(*RegionKey::of(key.bytes()))}));
    slots = *source->lay_out(kPage, kPages);
  }
  Outcome load_page(std::uint32_t index) {
    tiers::Transfer transfer{.page = {kSerial, 40 + index},
                             .version = 1,
                             .slot = slots + index,
                             .host = memory[index].get(),
                             .bytes = kPage};
    std::memset(transfer.host, 0xee, kPage);
    EXPECT_TRUE(copies.sources().submit({&transfer, 1}));
    const auto ended = [&] {
      EXPECT_TRUE(copies.disks().poll(own_ended) && copies.sources().poll(completions));
      return std::ranges::find(completions, transfer.id, &tiers::Completion::id);
    };
    until([&] { return ended() != completions.end(); });
    return ended()->outcome;
  }
  // Pages that came from nodes meanwhile.
  std::uint64_t scan() {
    const std::uint64_t before = tier->statistics().pages;
    for (std::uint32_t page = 0; page < kPages; ++page) {
      EXPECT_EQ(load_page(page), Outcome::done) << page;
      EXPECT_TRUE(holds(page)) << page;
    }
    turn();
    return tier->statistics().pages - before;
  }

  ScriptedDisks disks{clock, 64 * kPage};
  DiskCopies copies{*tier, disks, clock, {.workers = 0, .on_ready = {}}};
  std::vector<tiers::Completion> own_ended;
};

TEST_F(SharedCopies, AScanThatIsRepeatedFetchesNothingTheThirdTime) {
  disks.page_us = 1000;
  EXPECT_EQ(scan(), kPages);
  EXPECT_EQ(disks.stores, 0u);
  EXPECT_EQ(scan(), kPages);
  EXPECT_EQ(disks.stores, kPages);
  EXPECT_EQ(scan(), 0u);
  EXPECT_EQ(scan(), 0u);
  // Both rates are known now.
  reopen();
  EXPECT_TRUE(copies.disks().poll(own_ended));
  EXPECT_EQ(disks.used_bytes(), 0u);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(scan(), kPages);
  EXPECT_EQ(scan(), 0u);
}

TEST_F(SharedCopies, DisksThatAreSlowerThanTheNetworkAreLeftAloneOnceThatIsKnown) {
  disks.page_us = 500'000;
  for (int round = 0; round < 2; ++round) EXPECT_EQ(scan(), kPages);
  for (int round = 0; round < 2; ++round) EXPECT_EQ(scan(), 0u) << "tried";
  EXPECT_EQ(scan(), kPages);
  reopen();
  for (int round = 0; round < 3; ++round) EXPECT_EQ(scan(), kPages);
  EXPECT_EQ(disks.stores, kPages);
}

TEST_F(SharedCopies, PagesWithCopiesOutliveTheirSources) {
  disks.page_us = 1000;
  for (int round = 0; round < 2; ++round) scan();
  for (std::uint32_t page = 0; page < kPages; ++page) finder.nowhere.insert(page);
  EXPECT_EQ(scan(), 0u);
  disks.fails_loads = Outcome::lost;
  EXPECT_EQ(load_page(0), Outcome::lost);
}

}  // namespace
}  // namespace vmem::sharing
