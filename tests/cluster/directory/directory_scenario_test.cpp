// What the directory promises, one promise a test, in a cluster without other faults.
#include <gmock/gmock.h>

#include "base/log.hpp"
#include "cluster/simulator/directory_world.hpp"

namespace vmem::cluster::simulator {
namespace {

using directory::Serial;

constexpr std::uint32_t kPages = 16;
constexpr std::uint32_t kPublisher = 5, kReader = 6;  // programs

class DirectoryScenario : public ::testing::Test {
 protected:
  void begin(std::uint64_t seed, const DirectoryShape& shape = {}) {
    log::set_level(log::Level::error);  // what is lost here is lost on purpose
    world_ = std::make_unique<DirectoryWorld>(seed, shape);
    for (const auto& host : world().hosts()) host->start();
    world().run_for(4'000'000);
  }
  DirectoryWorld& world() { return *world_; }
  DirectoryHost& host(std::uint32_t index) { return *world().hosts()[index]; }

  Serial publish(std::uint32_t copies, std::uint64_t expires_s = 0) {
    world().publish(publisher_, {.name = "table", .copies = copies, .expires_s = expires_s});
    world().run_for(9'000'000);
    const std::vector<Serial> open = world().open_at(publisher_);
    EXPECT_EQ(open.size(), 1u);
    return open.empty() ? Serial{} : open.front();
  }
  void open(std::uint32_t at) {
    world().open(at, "table", 5'000'000);
    world().run_for(3'000'000);
    EXPECT_EQ(world().open_at(at).size(), 1u);
  }
  std::uint32_t written(Serial serial) {
    std::uint32_t pages = 0;
    for (std::uint32_t page = 0; page < kPages; ++page) pages += world().is_written(serial, page) ? 1 : 0;
    return pages;
  }
  std::uint32_t at(std::uint32_t index, Serial serial) {
    std::uint32_t pages = 0;
    for (std::uint32_t page = 0; page < kPages; ++page) pages += host(index).has(serial, page) ? 1 : 0;
    return pages;
  }
  void drain(std::uint32_t index, const DrainOrder& order) {
    const auto node = world().registry().records().find(node_key(host(index).id()));
    ASSERT_NE(node, world().registry().records().end());
    world().registry().apply(drain_commit(node->second, order));
  }
  // How many pages are left there once it has dropped those that it need not keep.
  std::uint32_t kept_at(std::uint32_t index, Serial serial) {
    for (std::uint32_t page = 0; page < kPages; ++page) host(index).evict(serial, page);
    return at(index, serial);
  }
  // The only region's, as the registry has it.
  std::optional<directory::RegionRecord> record() {
    for (const auto& [key, value] : world().registry().records())
      if (key.starts_with(directory::kRegionsPrefix)) return directory::parse_region(key, value.value).value();
    return std::nullopt;
  }
  // Another host than usual publishes: a daemon, whose own copy does not count.
  void let_daemon_publish() { publisher_ = 1; }
  void expect_right() { EXPECT_EQ(world().wrong(), ""); }

 private:
  std::uint32_t publisher_ = kPublisher;
  std::unique_ptr<DirectoryWorld> world_;
};

TEST_F(DirectoryScenario, WhatHasNCopiesSurvivesTheDeathOfAnyNOfItsKeepers) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    const auto copies = std::uint32_t(1 + seed % 2);
    if (seed == 7) let_daemon_publish();
    begin(seed);
    const Serial serial = publish(copies);
    ASSERT_TRUE(world().is_complete(serial)) << seed;
    open(kReader);
    std::vector<std::uint32_t> keepers;
    for (std::uint32_t i = 0; i < kReader; ++i)
      if (at(i, serial) != 0) keepers.push_back(i);
    ASSERT_GE(keepers.size(), copies + 1);
    for (std::uint32_t killed = 0; killed < copies; ++killed) {
      const std::size_t victim = world().random()() % keepers.size();
      host(keepers[victim]).crash();
      keepers.erase(keepers.begin() + std::ptrdiff_t(victim));
    }
    world().run_for(3 * world().lease_us());
    world().read_all();
    EXPECT_EQ(at(kReader, serial), written(serial)) << seed;
    EXPECT_EQ(world().counts().lost, 0u);
    expect_right();
  }
}

TEST_F(DirectoryScenario, APublicationWhoseAnswerIsLostIsSettledByReading) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    begin(seed);
    world().registry().faults.replies_lost = 300;
    world().publish(kPublisher, {.name = "table", .copies = 0, .expires_s = 0, .wait_us = 20'000'000});
    world().run_for(22'000'000);
    EXPECT_EQ(world().counts().published, 1u) << seed;
    expect_right();
  }
}

// Its commit was done. The publisher writes to the memory again, so nobody may ever read it; and
// its addresses belong to no region that has ended.
TEST_F(DirectoryScenario, APublicationThatWasGivenUpIsRemovedWhenItAppears) {
  int appeared = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    begin(seed);
    world().publish(kPublisher, {.name = "table", .copies = 0, .expires_s = 0, .wait_us = 2'000'000});
    while (!host(kPublisher).is_waiting()) world().run_for(100);
    world().run_for(world().random()() % 30'000);
    world().registry().faults.replies_lost = 1000;
    world().run_for(3'000'000);
    if (world().counts().given_up == 0 || !record()) continue;
    ++appeared;
    const std::uint64_t freed = world().counts().freed;
    world().open(kReader, "table", 20'000'000);
    world().registry().faults.replies_lost = 0;
    world().run_for(21'000'000);
    EXPECT_EQ(world().counts().opened, 0u) << seed;
    EXPECT_FALSE(record()) << seed;
    EXPECT_EQ(world().counts().freed - freed, world().hosts().size() - 1) << seed;
    expect_right();
  }
  EXPECT_GT(appeared, 2);
}

TEST_F(DirectoryScenario, CopiesAreRemadeOnAnotherRackAfterADeath) {
  begin(3);
  const Serial serial = publish(1);
  std::uint32_t first = 0;
  while (first < 4 && at(first, serial) == 0) ++first;
  ASSERT_LT(first, 4u);
  EXPECT_NE(first % 2, kPublisher % 2) << "on another rack than the publisher";
  host(first).crash();
  world().run_for(4 * world().lease_us());
  std::uint32_t copies = 0;
  for (std::uint32_t i = 0; i < 4; ++i) copies += at(i, serial);
  EXPECT_EQ(copies, written(serial));
  expect_right();
}

TEST_F(DirectoryScenario, ThreeReadersCostTheOwnerAtMostOneAndAHalfTables) {
  begin(4);
  const Serial serial = publish(0);
  for (const std::uint32_t reader : {4u, 6u, 7u}) open(reader);
  const std::uint64_t before = host(kPublisher).counts.served;
  for (std::uint32_t page = 0; page < kPages; ++page) {
    for (const std::uint32_t reader : {4u, 6u, 7u}) host(reader).read(serial, page, 5'000'000);
    world().run_for(world().random()() % 4'000);
  }
  world().run_for(3'000'000);
  for (const std::uint32_t reader : {4u, 6u, 7u}) EXPECT_EQ(at(reader, serial), written(serial));
  EXPECT_LE(host(kPublisher).counts.served - before, written(serial) * 3 / 2);
  expect_right();
}

TEST_F(DirectoryScenario, AnOwnerThatLeavesMovesWhatOnlyItKeeps) {
  begin(5);
  const Serial serial = publish(0);
  open(kReader);
  world().leave(kPublisher, 8'000'000);
  world().run_for(9'000'000);
  EXPECT_EQ(world().counts().left, 1u);
  EXPECT_FALSE(host(kPublisher).running());
  world().read_all();
  EXPECT_EQ(at(kReader, serial), written(serial));
  EXPECT_EQ(world().counts().lost, 0u);
  expect_right();
}

TEST_F(DirectoryScenario, ADrainingDaemonHandsItsCopiesOver) {
  begin(6);
  const Serial serial = publish(1);
  std::uint32_t first = 0;
  while (first < 4 && at(first, serial) == 0) ++first;
  ASSERT_LT(first, 4u);
  drain(first, {});
  world().run_for(8'000'000);
  std::uint32_t copies = 0;
  for (std::uint32_t i = 0; i < 4; ++i) copies += i == first ? 0 : at(i, serial);
  EXPECT_EQ(copies, written(serial));
  EXPECT_EQ(kept_at(first, serial), 0u) << "it need not keep them any longer";
  expect_right();
}

TEST_F(DirectoryScenario, ADrainThatIsForcedLeavesFewerCopiesWhereNoOtherDaemonCanTakeThem) {
  begin(18, {.daemons = 2, .programs = 6});
  const Serial serial = publish(2);
  ASSERT_EQ(at(0, serial), written(serial));
  ASSERT_EQ(at(1, serial), written(serial));
  drain(0, {});
  world().run_for(8'000'000);
  EXPECT_EQ(kept_at(0, serial), written(serial)) << "two copies are wanted, and nobody else can take one";
  drain(0, {.force = true});
  world().run_for(8'000'000);
  EXPECT_EQ(kept_at(0, serial), 0u);
  EXPECT_EQ(kept_at(1, serial), written(serial));
  drain(1, {.force = true});
  world().run_for(8'000'000);
  EXPECT_EQ(kept_at(1, serial), written(serial)) << "the last copy stays";
  expect_right();
}

TEST_F(DirectoryScenario, ADrainThatIsForcedLeavesAllCopiesWhereAnotherDaemonCanTakeThem) {
  begin(19, {.daemons = 3, .programs = 5});
  const Serial serial = publish(2);
  drain(0, {.force = true});
  world().run_for(8'000'000);
  EXPECT_EQ(kept_at(0, serial), 0u);
  EXPECT_EQ(kept_at(1, serial), written(serial));
  EXPECT_EQ(kept_at(2, serial), written(serial));
  expect_right();
}

TEST_F(DirectoryScenario, ARegionIsRemovedWhenItExpiresAndItsAddressesAreFreedAfterTheLastClose) {
  begin(7);
  publish(1, 1'000'000 + 25);
  open(kReader);
  world().run_for(20'000'000);
  EXPECT_GT(world().counts().freed, 0u);
  EXPECT_TRUE(world().open_at(kPublisher).empty());
  EXPECT_TRUE(world().open_at(kReader).empty());
  for (const auto& [key, record] : world().registry().records()) {
    EXPECT_FALSE(key.starts_with(directory::kRegionsPrefix)) << key;
    EXPECT_FALSE(key.starts_with(directory::kNamesPrefix)) << key;
  }
  expect_right();
}

TEST_F(DirectoryScenario, ALostRegionIsStillResolvedAndAnsweredAsLost) {
  begin(8);
  const Serial serial = publish(0);
  open(kReader);
  host(kPublisher).crash();
  world().run_for(3 * world().lease_us());
  const directory::StoredRegion* const region = host(0).directory().regions().resolve(0);
  ASSERT_NE(region, nullptr);
  EXPECT_EQ(region->record.serial, serial);
  EXPECT_NE(region->record.term, directory::Term{1});
  world().read_all();
  EXPECT_EQ(host(kReader).counts.lost, written(serial));
  EXPECT_EQ(host(kReader).counts.free, kPages - written(serial)) << "FREE pages are known still";
  expect_right();
}

constexpr DirectoryShape kProgramsOnly{.daemons = 0, .programs = 8};

// A program promises to keep nothing, and has what it has.
TEST_F(DirectoryScenario, WhatItsPublisherLosesIsReadFromAProgramThatHasIt) {
  begin(15, kProgramsOnly);
  const Serial serial = publish(0);
  open(kReader);
  open(4);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kReader).read(serial, page, 5'000'000);
  world().run_for(2'000'000);
  ASSERT_EQ(at(kReader, serial), written(serial));
  for (std::uint32_t page = 0; page < kPages; ++page) host(kPublisher).lose(serial, page);
  EXPECT_EQ(at(kPublisher, serial), 0u);
  world().read_all();
  EXPECT_EQ(at(4, serial), written(serial));
  EXPECT_EQ(at(kPublisher, serial), written(serial)) << "it rescues its own pages";
  EXPECT_EQ(world().counts().lost, 0u);
  expect_right();
}

TEST_F(DirectoryScenario, WhatAllProgramsHaveDroppedIsLost) {
  begin(16, kProgramsOnly);
  const Serial serial = publish(0);
  open(kReader);
  open(4);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kReader).read(serial, page, 5'000'000);
  world().run_for(2'000'000);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kPublisher).lose(serial, page);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kReader).evict(serial, page);
  for (std::uint32_t page = 0; page < kPages; ++page) host(4).read(serial, page, 5'000'000);
  world().run_for(6'000'000);
  EXPECT_EQ(world().counts().lost, written(serial));
  EXPECT_EQ(host(4).counts.lost, written(serial));
  world().read_all();
  EXPECT_EQ(host(kReader).counts.lost, written(serial)) << "which was the last one that had them";
  EXPECT_EQ(host(kPublisher).counts.lost, written(serial));
  EXPECT_EQ(host(4).counts.late, 0u);
  expect_right();
}

// Programs may drop them at any time.
TEST_F(DirectoryScenario, WhatOnlyProgramsHaveIsCopiedToADaemon) {
  begin(17);
  const Serial serial = publish(0);
  open(kReader);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kReader).read(serial, page, 5'000'000);
  world().run_for(2'000'000);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kPublisher).lose(serial, page);
  world().run_for(6'000'000);
  for (std::uint32_t page = 0; page < kPages; ++page) host(kReader).evict(serial, page);
  EXPECT_EQ(at(kReader, serial), 0u);
  world().read_all();
  EXPECT_EQ(at(kReader, serial), written(serial));
  EXPECT_EQ(world().counts().lost, 0u);
  expect_right();
}

// A closed part has to be over before the region can be opened again. It is over after a reading of
// the record, which does not wait for the period of the poll.
TEST_F(DirectoryScenario, ARegionThatWasClosedIsOpenAgainAtOnce) {
  begin(9);
  const Serial serial = publish(0);
  open(kReader);
  for (int turn = 0; turn < 8; ++turn) {
    world().close(kReader, serial, 5'000'000);
    world().open(kReader, "table", 5'000'000);
    world().run_for(700'000);  // less than the period of the poll
    EXPECT_TRUE(world().is_open_at(kReader, serial)) << turn;
    world().run_for(world().random()() % 1'000'000);
  }
  expect_right();
}

// The home has admitted the node, and its answers do not come.
TEST_F(DirectoryScenario, AnOpenThatEndsByTimeoutLeavesNoTrace) {
  begin(18);
  const Serial serial = publish(0);
  world().network().link(kPublisher, kReader).cut = true;
  world().open(kReader, "table", 2'000'000);
  world().run_for(1'500'000);
  ASSERT_TRUE(record()->place_of(host(kReader).id())) << "or this shows nothing";
  world().run_for(2'000'000);
  EXPECT_EQ(world().counts().opened, 0u);
  world().network().link(kPublisher, kReader).cut = false;
  world().run_for(4'000'000);
  EXPECT_FALSE(record()->place_of(host(kReader).id()));
  EXPECT_EQ(host(kReader).directory().participant(serial), nullptr);
  open(kReader);
  expect_right();
}

TEST_F(DirectoryScenario, BytesOfAnEarlierSessionAreRefused) {
  begin(13);
  const Serial serial = publish(0);
  open(kReader);
  world().read_all();
  const std::uint32_t read = at(kReader, serial);
  EXPECT_EQ(read, written(serial));
  world().close(kReader, serial, 5'000'000);
  world().run_for(2'000'000);
  open(kReader);
  for (std::uint32_t fetch = 1; fetch <= kPages; ++fetch)
    EXPECT_FALSE(host(kReader).directory().arrived(serial, 0, directory::Fetch{fetch}));
  world().read_all();
  EXPECT_EQ(at(kReader, serial), read);
  expect_right();
}

TEST_F(DirectoryScenario, ALaterVersionUnderANameEndsTheEarlierOne) {
  begin(14);
  const Serial first = publish(1);
  open(kReader);
  world().publish(kPublisher, {.name = "table", .copies = 1});
  world().run_for(9'000'000);
  EXPECT_FALSE(world().is_open_at(kPublisher, first));
  EXPECT_FALSE(world().is_open_at(kReader, first));
  EXPECT_EQ(host(0).directory().regions().find(first), nullptr);
  const auto later = world().open_at(kPublisher);
  ASSERT_EQ(later.size(), 1u);
  EXPECT_EQ(host(0).directory().regions().find(later.front())->record.version, 2u);
  expect_right();
}

// The daemon was never told that it is open, and hears that the region is removed.
TEST_F(DirectoryScenario, ARegionIsErasedThoughADaemonWasJustInvited) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    begin(seed);
    const auto cut = [this](bool is) {
      for (Address daemon = 0; daemon < 4; ++daemon) world().network().link(kPublisher, daemon).cut = is;
    };
    cut(true);
    publish(1);
    world().remove(kPublisher, "table", 9'000'000);
    world().run_for(2'000'000 + world().random()() % 300'000);
    cut(false);
    world().run_for(9'000'000);
    EXPECT_FALSE(record()) << seed;
    expect_right();
  }
}

// The home does not know yet that its invitation is in the record, and refuses who was invited.
TEST_F(DirectoryScenario, ARegionIsErasedThoughTheAnswerToAnInvitationIsLost) {
  std::uint32_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    begin(seed);
    world().publish(kPublisher, {.name = "table", .copies = 1});
    while (!record()) world().run_for(50);
    const Serial serial = record()->serial;
    world().registry().faults.replies_lost = 1000;
    while (record()->invitations == 0) world().run_for(50);
    world().registry().faults.replies_lost = 0;
    const directory::HomeDirectory* const home = host(kPublisher).directory().home(serial);
    lost += home != nullptr && home->desk().record().invitations == 0 ? 1 : 0;
    world().remove(kPublisher, "table", 9'000'000);
    world().run_for(9'000'000);
    EXPECT_FALSE(record()) << seed;
    expect_right();
  }
  EXPECT_GT(lost, 0u) << "this shows nothing";
}

TEST_F(DirectoryScenario, ARemovalIsOfTheVersionThatItFound) {
  begin(10);
  const Serial first = publish(0);
  world().network().link(kReader, kPublisher).cut = true;
  world().remove(kReader, "table", 30'000'000);
  world().run_for(2'000'000);
  world().publish(kPublisher, {.name = "table"});
  world().run_for(4'000'000);
  world().network().link(kReader, kPublisher).cut = false;
  world().run_for(9'000'000);
  EXPECT_FALSE(world().is_open_at(kPublisher, first));
  EXPECT_EQ(world().open_at(kPublisher).size(), 1u) << "the version that came later";
  EXPECT_EQ(world().counts().removed, 1u);
  expect_right();
}

TEST_F(DirectoryScenario, ARemovalWhoseAnswerIsLostEndsWithTheRecord) {
  begin(15);
  publish(0);
  world().network().link(kPublisher, kReader).cut = true;
  world().remove(kReader, "table", 20'000'000);
  world().run_for(9'000'000);
  EXPECT_FALSE(record());
  EXPECT_EQ(world().counts().removed_well, 1u);
  expect_right();
}

TEST_F(DirectoryScenario, OnlyItsHomeSaysThatARegionIsRemoved) {
  begin(11);
  const Serial serial = publish(0);
  world().network().link(kReader, kPublisher).cut = true;
  world().remove(kReader, "table", 5'000'000);
  world().run_for(1'000'000);
  for (const directory::Body& body :
       {directory::Body{directory::Removed{}}, directory::Body{directory::RefusedBy{directory::Refusal::tenant}}})
    host(kReader).directory().deliver(
        {.node = host(0).id(), .tenant = "other"},
        directory::write(
            {.serial = serial, .term = directory::Term{1}, .session = directory::Session{}, .body = body}));
  host(kReader).wake();
  world().run_for(1'000'000);
  EXPECT_EQ(world().counts().removed, 0u) << "it waits on";
  world().run_for(4'000'000);
  EXPECT_EQ(world().counts().removed, 1u) << "TIMEOUT";
  expect_right();
}

TEST_F(DirectoryScenario, WrittenPagesAreGivenInAscendingRuns) {
  begin(12);
  using directory::Runs;
  for (const Runs& written : {Runs{{.first = 5, .count = 9}, {.first = 0, .count = 1}}, Runs{{.first = 0, .count = 9}},
                              Runs{{.first = 0, .count = 2}, {.first = 1, .count = 1}}}) {
    DirectoryHost& at = host(kPublisher);
    at.waits_for(at.directory().publish({.serial = Serial{500},
                                         .name = "wrong",
                                         .first_granule = 1,
                                         .granules = 8,
                                         .page_bytes = 1,
                                         .bytes = 8,
                                         .written = written},
                                        1'000'000),
                 1'000'000, "publish");
  }
  world().run_for(1'000'000);
  EXPECT_EQ(world().counts().incomplete, 3u);
  EXPECT_TRUE(world().open_at(kPublisher).empty());
  expect_right();
}

}  // namespace
}  // namespace vmem::cluster::simulator
