// What the mover tells a trace.
#include <filesystem>
#include <string>

#include "migration/mover_harness.hpp"
#include "trace/file.hpp"
#include "trace/recorder.hpp"

namespace vmem::migration {
namespace {

using trace::Happened;

class MoverTrace : public MoverTest {
 protected:
  MoverTrace() {
    std::string name = (std::filesystem::temp_directory_path() / "vmem-mover-trace-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    recorder = std::move(*trace::Recorder::create(path(), ~std::uint64_t{0}, {}, 0));
  }
  ~MoverTrace() override { std::filesystem::remove_all(folder_); }
  std::string path() const { return (folder_ / "trace").string(); }
  // As a launch does it: uses, then the launch.
  void launch(Actor& by, Region& region, std::uint32_t what = 0) {
    const Range range = launching(region, 0, region.page_count);
    ASSERT_TRUE(acquire(by, range));
    const Stamp stamp = by.record->open_stamp();
    by.slot->log.append(
        {region.whole, stamp, pagetable::LoggedUse::Kind::named, false, 0, 0, std::uint32_t(region.life)});
    by.slot->log.append(pagetable::LoggedUse::launch(now_us * 1000, stamp, by.record->device, what));
    withdraw(by, range);
    finish_work(by);
    steps();
  }
  Region& shared_region(std::uint32_t pages) {
    AllocateRequest request;
    request.bytes = pages * kPageBytes;
    request.kind = RegionKind::shared;
    EXPECT_TRUE(ask(request));
    ExtendRequest more;
    more.region = request.region;
    more.first_granule = request.region->first.index;
    more.pages = pages;
    EXPECT_TRUE(ask(more));
    return *request.region;
  }
  trace::Trace recorded() {
    finish();
    recorder->finish();
    auto read = trace::read(path());
    EXPECT_TRUE(read) << read.error().message;
    return std::move(*read);
  }
  template <class Body>
  static std::vector<Body> all(const trace::Trace& trace) {
    std::vector<Body> found;
    for (const trace::Event& event : trace.events) {
      if (const auto* body = std::get_if<Body>(&event.body)) found.push_back(*body);
    }
    return found;
  }
  std::unique_ptr<trace::Recorder> recorder;

 private:
  std::filesystem::path folder_;
};

TEST_F(MoverTrace, HoldsBlocksLaunchesAndWhatBecameOfThePages) {
  start({.hbm_pages = 2, .undeclared = true, .recorder = recorder.get()});
  Region& first = allocate(2);
  Actor& a = actor();
  launch(a, first, recorder->number_of("fill"));
  Region& second = allocate(2);
  launch(a, second);  // evicts the first
  launch(a, first);
  const trace::Trace trace = recorded();

  const auto begins = all<trace::BlockBegins>(trace);
  ASSERT_EQ(begins.size(), 2u);
  EXPECT_EQ(begins[0].kind, trace::BlockKind::undeclared);
  EXPECT_EQ(begins[0].granules, 2u);
  EXPECT_EQ(all<trace::BlockEnds>(trace).size(), 2u);
  const auto launches = all<trace::Launch>(trace);
  ASSERT_EQ(launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) ASSERT_EQ(launches[i].named.size(), 1u);
  EXPECT_EQ(trace.names.at(launches[0].what), "fill");
  EXPECT_EQ(launches[0].named[0].block, begins[0].block);
  EXPECT_EQ(launches[1].named[0].block, begins[1].block);
  EXPECT_EQ(launches[2].named[0].block, begins[0].block);
  // Each launch is the last of its epoch, and epochs have times.
  EXPECT_LT(launches[0].epoch, launches[1].epoch);
  EXPECT_GE(all<trace::EpochEnds>(trace).size(), 3u);

  std::uint32_t out = 0, in = 0;
  for (const trace::Transfer& each : all<trace::Transfer>(trace)) {
    EXPECT_EQ(each.place, trace::Transfer::Place::host);
    EXPECT_TRUE(each.copied);
    (each.direction == trace::Transfer::Direction::out ? out : in) += each.granules;
  }
  EXPECT_EQ(out, 4u);
  EXPECT_EQ(in, 2u);
  std::uint32_t maps = 0, unmaps = 0;
  for (const trace::PageChanges& each : all<trace::PageChanges>(trace)) {
    maps += each.what == Happened::mapped_hbm ? 1 : 0;
    unmaps += each.what == Happened::unmapped ? 1 : 0;
  }
  EXPECT_EQ(maps, 6u);
  EXPECT_GE(unmaps, 4u);
  EXPECT_GE(all<trace::Wait>(trace).size(), 3u) << "each launch asked the mover for its pages";
}

// Blocks that share pages are blocks of their own, whatever happens to their pages.
TEST_F(MoverTrace, NamesTheBlocksOfSharedPages) {
  start({.hbm_pages = 4, .undeclared = true, .recorder = recorder.get()});
  Region& region = shared_region(8);
  const std::uint32_t base = region.first.index;
  pagetable::SharedPages& sharing = space->sharing();
  Actor& a = actor();
  const auto block = [&](std::uint32_t first, std::uint32_t granules) {
    return pagetable::Span({base + first}, granules, pagetable::Access::read);
  };
  const auto change = [&](pagetable::Span span, bool dead) {
    if (dead) {
      sharing.end_block(region, span);
    } else {
      sharing.begin_block(region, span);
    }
    a.slot->log.append(
        pagetable::LoggedUse::change(now_us * 1000, {span.first()}, span.count(), std::uint32_t(region.life), dead));
  };
  const auto launch_block = [&](pagetable::Span span) {
    const Stamp stamp = a.record->open_stamp();
    a.slot->log.append({span, stamp, pagetable::LoggedUse::Kind::named, false, 0, 0, std::uint32_t(region.life)});
    a.slot->log.append(pagetable::LoggedUse::launch(now_us * 1000, stamp, a.record->device, 0));
    steps();
  };
  const auto first = block(0, 2), second = block(2, 1), third = block(0, 3);
  change(first, false);
  change(second, false);
  launch_block(first);
  launch_block(second);
  change(first, true);
  change(second, true);
  change(third, false);
  launch_block(third);
  change(third, true);
  steps();
  const trace::Trace trace = recorded();
  const auto begins = all<trace::BlockBegins>(trace);
  ASSERT_EQ(begins.size(), 3u);
  EXPECT_EQ(begins[0].granules, 2u);
  EXPECT_EQ(begins[1].granule, base + 2);
  EXPECT_EQ(begins[2].granules, 3u);
  EXPECT_EQ(all<trace::BlockEnds>(trace).size(), 3u);
  const auto launches = all<trace::Launch>(trace);
  ASSERT_EQ(launches.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(launches[i].named.size(), 1u);
    EXPECT_EQ(launches[i].named[0].block, begins[i].block);
    EXPECT_EQ(launches[i].named[0].flags, 0);
  }
}

// One thread allocates and uses what another one frees, as with PyTorch's two.
TEST_F(MoverTrace, TellsInTheOrderOfTimeWhatThreadsLoggedBesideEachOther) {
  start({.hbm_pages = 4, .undeclared = true, .recorder = recorder.get()});
  Region& region = shared_region(4);
  const pagetable::Span block({region.first.index}, 1, pagetable::Access::read);
  Actor& allocates = actor();
  Actor& frees = actor();
  std::uint64_t at_ns = now_us * 1000;
  constexpr std::uint32_t kBlocks = 5;
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    space->sharing().begin_block(region, block);
    const auto life = std::uint32_t(region.life);
    const Stamp stamp = allocates.record->open_stamp();
    allocates.slot->log.append(pagetable::LoggedUse::change(++at_ns, {block.first()}, 1, life, false));
    allocates.slot->log.append({block, stamp, pagetable::LoggedUse::Kind::named, false, 0, 0, life});
    allocates.slot->log.append(pagetable::LoggedUse::launch(++at_ns, stamp, allocates.record->device, 0));
    space->sharing().end_block(region, block);
    frees.slot->log.append(pagetable::LoggedUse::change(++at_ns, {block.first()}, 1, std::uint32_t(region.life), true));
  }
  steps();
  const trace::Trace trace = recorded();
  std::string order;
  for (const trace::Event& event : trace.events) {
    if (std::holds_alternative<trace::BlockBegins>(event.body)) order.push_back('b');
    if (std::holds_alternative<trace::Launch>(event.body)) order.push_back('l');
    if (std::holds_alternative<trace::BlockEnds>(event.body)) order.push_back('e');
  }
  EXPECT_EQ(order, "blebleblebleble");
  const auto launches = all<trace::Launch>(trace);
  const auto begins = all<trace::BlockBegins>(trace);
  for (std::uint32_t i = 0; i < kBlocks; ++i) {
    ASSERT_EQ(launches[i].named.size(), 1u);
    EXPECT_EQ(launches[i].named[0].block, begins[i].block);
  }
}

// The mover may read a log between a use and the launch that it is of.
TEST_F(MoverTrace, AUseWaitsForItsLaunch) {
  start({.hbm_pages = 4, .undeclared = true, .recorder = recorder.get()});
  Region& region = allocate(1);
  Actor& a = actor();
  const Stamp stamp = a.record->open_stamp();
  a.slot->log.append({region.whole, stamp, pagetable::LoggedUse::Kind::named, false, 0, 0, std::uint32_t(region.life)});
  steps();
  a.slot->log.append(pagetable::LoggedUse::launch(now_us * 1000, stamp, a.record->device, 0));
  steps();
  const trace::Trace trace = recorded();
  const auto launches = all<trace::Launch>(trace);
  ASSERT_EQ(launches.size(), 1u);
  ASSERT_EQ(launches[0].named.size(), 1u);
  EXPECT_EQ(launches[0].named[0].block, all<trace::BlockBegins>(trace).at(0).block);
}

TEST_F(MoverTrace, APageThatWasOnlyReadIsComparedInsteadOfCopied) {
  start({.hbm_pages = 1, .undeclared = true, .recorder = recorder.get()});
  Region& first = allocate(1);
  Region& second = allocate(1);
  Actor& a = actor();
  for (Region* each : {&first, &second, &first, &second}) launch(a, *each);
  std::uint32_t copied = 0, compared = 0;
  for (const trace::Transfer& each : all<trace::Transfer>(recorded())) {
    if (each.direction == trace::Transfer::Direction::out) ++(each.copied ? copied : compared);
  }
  EXPECT_EQ(copied, 2u) << "each page once, when it was new";
  EXPECT_EQ(compared, 1u);
}

}  // namespace
}  // namespace vmem::migration
