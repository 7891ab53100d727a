// Random stores, loads and releases while lenders drain, come back, die and join, and while nothing
// passes one way between them and the tier.
#include <fmt/format.h>

#include <array>
#include <iterator>
#include <random>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Completion;
using tiers::Outcome;
using tiers::SlotId;

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 8, kSteps = 150;
#else
constexpr std::uint64_t kUsualSeeds = 32, kSteps = 250;
#endif

struct Course {
  const char* name;
  std::uint32_t replicas;
  bool deaths = false;            // of one lender at a time
  std::uint64_t longest_cut = 0;  // us, of one lender at a time
  bool may_fail = false;          // operations, for a time
  bool may_lose = false;          // pages
  bool by_need = false;           // leases grow and shrink
  Faults faults = {};             // of the network
};

constexpr std::uint64_t kShortCut = 6'000'000, kLongCut = 45'000'000;
constexpr Faults kAll{.drop = 0.01,
                      .duplicate = 0.1,
                      .delay = 0.1,
                      .corrupt_header = 0.01,
                      .corrupt_payload = 0.05,
                      .misdirect = 0.02,
                      .cut_out = 0.002,
                      .cut_in = 0.002,
                      .delay_us = 500'000};
// Silence proves no loss: without damage, all pages of lenders that live are there.
constexpr Faults kSilence{
    .drop = 0.01, .duplicate = 0.1, .delay = 0.1, .cut_out = 0.002, .cut_in = 0.002, .delay_us = 500'000};
// A message that reaches another lender than it was meant for.
constexpr Faults kMisdirected{.duplicate = 0.1, .delay = 0.1, .misdirect = 0.05, .delay_us = 500'000};
constexpr Course kCourses[] = {
    {.name = "drains", .replicas = 1},
    {.name = "leases by need", .replicas = 1, .longest_cut = kShortCut, .by_need = true},
    {.name = "leases by need, deaths", .replicas = 2, .deaths = true, .by_need = true},
    {.name = "leases by need, misdirected", .replicas = 1, .may_fail = true, .by_need = true, .faults = kMisdirected},
    {.name = "leases by need, faults",
     .replicas = 1,
     .longest_cut = kLongCut,
     .may_fail = true,
     .may_lose = true,
     .by_need = true,
     .faults = kAll},
    {.name = "drains of two", .replicas = 2, .longest_cut = kShortCut},
    {.name = "deaths of two", .replicas = 2, .deaths = true},
    {.name = "short cuts", .replicas = 1, .longest_cut = kShortCut},
    {.name = "short cuts and deaths", .replicas = 2, .deaths = true, .longest_cut = kShortCut},
    {.name = "long cuts", .replicas = 1, .longest_cut = kLongCut, .may_fail = true},
    {.name = "silence", .replicas = 1, .longest_cut = kLongCut, .may_fail = true, .faults = kSilence},
    {.name = "faults", .replicas = 1, .longest_cut = kShortCut, .may_fail = true, .may_lose = true, .faults = kAll},
    {.name = "faults and deaths",
     .replicas = 2,
     .deaths = true,
     .longest_cut = kLongCut,
     .may_fail = true,
     .may_lose = true,
     .faults = kAll}};

struct Counts {
  std::uint64_t drains = 0, deaths = 0, cuts = 0, failed = 0, lost = 0, repaired_bytes = 0;
};

class Campaign {
 public:
  Campaign(std::uint64_t seed, const Course& course) : course_(course), remote_(0, course.replicas), random_(seed) {
    remote_.seed = seed;
    remote_.drift();
    remote_.by_need = course.by_need;
    remote_.start_tier();
    for (std::uint64_t id = 1; id <= kLenders; ++id) {
      remote_.lenders.emplace_back();
      start(id);
    }
    remote_.tier->follow(named_);
    need(1);
    remote_.until([&] { return remote_.connected() == kLenders && remote_.ready() > 0; });
    set_faults(course.faults);
  }

  void play() {
    for (std::uint64_t step = 0; step < kSteps && !::testing::Test::HasFailure(); ++step) {
      if (random_() % 20 == 0) change_lenders();
      if (course_.longest_cut != 0 && random_() % 20 == 0) cut();
      if (random_() % 4 == 0) remote_.pass(random_() % 300'000);
      if (random_() % 8 == 0) need(pages_.size() + 1 + random_() % kMostPages);
      use_pages();
    }
  }
  void end_faults() {
    set_faults({});
    remote_.cut.end();
    for (NamedLender& each : named_) each.drains = false;
    remote_.tier->follow(named_);
    remote_.pass(80'000'000);
  }
  // A loss may be found only now.
  void pages_are_there() {
    may_fail_ = false;
    for (Known& known : pages_) {
      if (known.version != 0) load(known);
    }
    may_lose_ = false;
    for (Known& known : pages_) {
      if (known.version == 0) store(known, false);
      load(known);
    }
  }
  // Each lender in turn is emptied of all that it has, also of what an interrupted request left.
  void leave_nothing_behind() {
    for (const Known& known : pages_) remote_.tier->release(known.slot);
    if (course_.by_need) expect_no_leases();
    for (NamedLender& each : named_) {
      const MemoryService& service = *remote_.lenders[id_of(each) - 1]->service;
      each.drains = true;
      remote_.tier->follow(named_);
      remote_.until([&] { return service.statistics().pages == 0 && service.statistics().lent.memory == 0; });
      each.drains = false;
      remote_.tier->follow(named_);
      remote_.until([&] { return remote_.connected() == kLenders; });
    }
  }
  Counts counts() const {
    Counts counts = counts_;
    counts.repaired_bytes = remote_.tier->statistics().repaired_bytes;
    return counts;
  }

 private:
  static constexpr std::size_t kLenders = 4, kMostPages = 10;
  struct Known {
    SlotId slot;
    std::uint64_t granule = 0, version = 0;  // 0: nothing is stored for certain
  };

  static std::uint64_t id_of(const NamedLender& lender) { return std::stoull(lender.addresses[0].substr(5)); }
  void need(std::uint64_t pages) { (void)remote_.tier->need(pages * kPage); }
  // Whatever was lost on the way: who needs nothing has a page's room at most, by each lender.
  void expect_no_leases() {
    need(0);
    remote_.pass(15'000'000);
    for (const auto& lender : remote_.lenders) {
      EXPECT_LE(lender->service->statistics().lent.memory, kPage);
    }
  }
  void start(std::uint64_t id) {
    remote_.start_lender(id);
    named_.push_back({.name = ++last_name_, .addresses = {node_address(id)}});
  }
  void set_faults(const Faults& faults) {
    remote_.faults->set_faults(faults);
    for (const auto& lender : remote_.lenders) lender->faults->set_faults(faults);
  }

  void ended(Known& known, const Completion& end) {
    if (end.outcome == Outcome::done) return;
    ++counts_.failed;
    if (end.outcome != Outcome::lost) {
      EXPECT_TRUE(may_fail_) << end.error.message;
      return;
    }
    ++counts_.lost;
    known.version = 0;
    EXPECT_TRUE(may_lose_) << end.error.message;
  }
  void store(Known& known, bool if_changed) {
    if (!if_changed) known.version = ++version_;
    const Completion stored = remote_.store(known.slot, known.granule, known.version, if_changed);
    ended(known, stored);
    if (stored.outcome != Outcome::done) known.version = 0;
  }
  void load(Known& known) {
    const Completion loaded = remote_.load(known.slot, known.granule, known.version);
    ended(known, loaded);
    if (loaded.outcome == Outcome::done) {
      EXPECT_TRUE(remote_.holds(1, known.granule, known.version)) << "wrong bytes";
    }
  }
  void use_pages() {
    const bool more = pages_.empty() || (pages_.size() < kMostPages && random_() % 4 == 0);
    const auto granted = more ? remote_.tier->allocate(kPage) : tiers::SlotGrant{};
    if (granted && granted->grant == tiers::Grant::granted) pages_.push_back({granted->slot, ++last_granule_, 0});
    if (pages_.empty()) return;
    Known& known = pages_[random_() % pages_.size()];
    const std::uint64_t what = random_() % 8;
    if (what == 0) {
      remote_.tier->release(known.slot);
      std::swap(known, pages_.back());
      pages_.pop_back();
    } else if (known.version == 0 || what < 4) {
      store(known, known.version != 0 && what == 1);
    } else {
      load(known);
    }
  }

  // One way, or both. Another lender than before, so that none is silent for the 60 s after which
  // it may forget the tier.
  void cut() {
    if (remote_.cut.on()) return;
    const Way way = std::array{Way::out, Way::in, Way::both}[random_() % 3];
    cut_lender_ = 1 + (cut_lender_ + random_() % (kLenders - 1)) % kLenders;
    const std::uint64_t us = course_.longest_cut / 8 + random_() % (course_.longest_cut * 7 / 8);
    remote_.cut.begin(NodeId{SteppedRemote::kTier}, NodeId{cut_lender_}, way, us);
    ++counts_.cuts;
  }

  // At most one lender is absent or leaves, so there are three others.
  void change_lenders() {
    const std::size_t at = random_() % named_.size();
    if (std::ranges::any_of(named_, &NamedLender::drains)) {
      for (NamedLender& each : named_) each.drains = false;
    } else if (course_.deaths && random_() % 3 == 0) {
      die(at);
    } else {
      named_[at].drains = true;
      named_[at].drain_rate = kPage << random_() % 8;
      ++counts_.drains;
    }
    remote_.tier->follow(named_);
  }
  // Where no page may be lost, each has two copies before.
  void die(std::size_t at) {
    const std::uint64_t id = id_of(named_[at]);
    if (!may_lose_ && remote_.cut.on()) {
      remote_.cut.end();
      remote_.pass(10'000'000);
    }
    named_.erase(named_.begin() + static_cast<std::ptrdiff_t>(at));
    remote_.tier->follow(named_);
    remote_.lenders[id - 1].reset();
    remote_.pass(3'000'000);  // single copies get their second ones
    start(id);
    remote_.lenders[id - 1]->faults->set_faults(course_.faults);
    ++counts_.deaths;
  }

  const Course& course_;
  SteppedRemote remote_;
  std::mt19937_64 random_;
  std::vector<NamedLender> named_;
  std::vector<Known> pages_;
  bool may_fail_ = course_.may_fail, may_lose_ = course_.may_lose;
  std::uint64_t cut_lender_ = 1;  // the latest
  std::uint64_t last_name_ = 0, last_granule_ = 0, version_ = 0;
  Counts counts_;
};

class RepairsCampaign : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, RepairsCampaign, ::testing::Range<std::uint64_t>(0, test::kShards));

TEST_P(RepairsCampaign, NoByteIsWrongAndNothingIsLeftBehind) {
  log::set_level(log::Level::error);
  std::uint64_t repaired_bytes = 0, count = 0;
  const auto run = [&](std::uint64_t seed) {
    const Course& course = kCourses[seed % std::size(kCourses)];
    Campaign campaign(seed, course);
    campaign.play();
    if (!HasFailure()) campaign.end_faults();
    if (!HasFailure()) campaign.pages_are_there();
    const Counts counts = campaign.counts();
    fmt::print("{}: {} drains, {} deaths, {} cuts, {} MiB repaired, {} operations failed, {} pages lost\n", course.name,
               counts.drains, counts.deaths, counts.cuts, counts.repaired_bytes >> 20, counts.failed, counts.lost);
    if (!HasFailure()) campaign.leave_nothing_behind();
    repaired_bytes += counts.repaired_bytes;
    ++count;
  };
  test::run_seeds(GetParam(), kUsualSeeds, run, "VMEM_TEST_LENDING_SEEDS");
  if (count >= 5) {
    EXPECT_GT(repaired_bytes, 0u) << "this shows nothing";
  }
}

}  // namespace
}  // namespace vmem::rdma
