// Random stores, loads and releases while lenders drain, come back, die and join.
#include <fmt/format.h>

#include <random>

#include "campaign/seeds.hpp"
#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Direction;
using tiers::Outcome;
using tiers::SlotId;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kSteps = 300;
#else
constexpr std::uint64_t kSteps = 2000;
#endif

struct Course {
  const char* name;
  std::uint32_t replicas;
  bool deaths;    // of one lender at a time
  Faults faults;  // of the network
};

class RepairsCampaign : public ::testing::TestWithParam<Course> {
 protected:
  static constexpr std::size_t kLenders = 4, kMostPages = 10;
  struct Known {
    SlotId slot;
    std::uint64_t granule = 0, version = 0;
  };

  RepairsCampaign() : remote(0, GetParam().replicas) {
    remote.seed = test::printed_seed();
    random.seed(remote.seed);
    remote.start_tier();
    for (std::uint64_t id = 1; id <= kLenders; ++id) {
      remote.lenders.emplace_back();
      start(id);
    }
    remote.tier->follow(named);
    remote.until([&] { return remote.connected() == kLenders && remote.tier->usage().ready_bytes > 0; });
    set_faults(GetParam().faults);
  }
  void start(std::uint64_t id) {
    remote.start_lender(id);
    named.push_back({.name = ++last_name, .addresses = {node_address(id)}});
  }
  void set_faults(const Faults& faults) {
    remote.faults->set_faults(faults);
    for (const auto& lender : remote.lenders) lender->faults->set_faults(faults);
  }
  bool any_drains() const { return std::ranges::any_of(named, &NamedLender::drains); }

  void store(Known& known, bool if_changed) {
    if (!if_changed) known.version = ++version;
    const Outcome outcome = remote.store(known.slot, known.granule, known.version, if_changed).outcome;
    if (outcome != Outcome::done) known.version = 0;
    failed += outcome != Outcome::done ? 1 : 0;
  }
  void load(Known& known) {
    const auto loaded = remote.load(known.slot, known.granule, known.version);
    if (loaded.outcome != Outcome::done) {
      ++failed;
      if (loaded.outcome == Outcome::lost) known.version = 0;
      return;
    }
    ASSERT_TRUE(remote.holds(1, known.granule, known.version)) << "wrong bytes";
  }
  void use_pages() {
    const bool more = pages.empty() || (pages.size() < kMostPages && random() % 4 == 0);
    const auto granted = more ? remote.tier->allocate(kPage) : tiers::SlotGrant{};
    if (granted && granted->grant == tiers::Grant::granted) pages.push_back({granted->slot, ++last_granule, 0});
    if (pages.empty()) return;
    Known& known = pages[random() % pages.size()];
    const std::uint64_t what = random() % 8;
    if (what == 0) {
      remote.tier->release(known.slot);
      std::swap(known, pages.back());
      pages.pop_back();
    } else if (known.version == 0 || what < 4) {
      store(known, known.version != 0 && what == 1);
    } else {
      load(known);
    }
  }
  // At most one lender is absent or leaves, so there are three others.
  void change_lenders() {
    const std::size_t at = random() % named.size();
    if (any_drains()) {
      for (NamedLender& each : named) each.drains = false;
    } else if (GetParam().deaths && random() % 3 == 0) {
      const std::uint64_t id = std::stoull(named[at].addresses[0].substr(5));
      named.erase(named.begin() + static_cast<std::ptrdiff_t>(at));
      remote.tier->follow(named);
      remote.lenders[id - 1].reset();
      remote.pass(3'000'000);  // single copies get their second ones
      start(id);
      remote.lenders[id - 1]->faults->set_faults(GetParam().faults);
      ++died;
    } else {
      named[at].drains = true;
      named[at].drain_rate = kPage << random() % 8;
      ++drained;
    }
    remote.tier->follow(named);
  }
  std::uint64_t held(std::size_t lender) const { return remote.lenders[lender]->service->statistics().pages; }

  SteppedRemote remote;
  std::mt19937_64 random;
  std::vector<NamedLender> named;
  std::vector<Known> pages;
  std::uint64_t last_name = 0, last_granule = 0, version = 0, failed = 0, drained = 0, died = 0;
};

TEST_P(RepairsCampaign, NoByteIsWrongAndNothingIsLeftBehind) {
  for (std::uint64_t step = 0; step < kSteps && !HasFatalFailure(); ++step) {
    if (random() % 20 == 0) change_lenders();
    if (random() % 4 == 0) remote.pass(random() % 300'000);
    use_pages();
  }
  ASSERT_FALSE(HasFatalFailure());
  fmt::print("{}: {} drains, {} deaths, {} MiB repaired, {} operations failed, seed {}\n", GetParam().name, drained,
             died, remote.tier->statistics().repaired_bytes >> 20, failed, remote.seed);
  EXPECT_GT(remote.tier->statistics().repaired_bytes, 0u);
  const bool faulty = GetParam().faults.drop + GetParam().faults.corrupt_payload != 0;
  EXPECT_TRUE(faulty || failed == 0);
  set_faults({});
  for (NamedLender& each : named) each.drains = false;
  remote.tier->follow(named);
  remote.pass(80'000'000);
  for (Known& known : pages) {
    if (known.version == 0) store(known, false);
    load(known);
  }
  for (const Known& known : pages) remote.tier->release(known.slot);
  // Each lender in turn is emptied of all that it has, also of what an interrupted request left.
  for (std::size_t i = 0; i < named.size(); ++i) {
    const std::size_t lender = std::stoull(named[i].addresses[0].substr(5)) - 1;
    named[i].drains = true;
    remote.tier->follow(named);
    remote.until([&] { return held(lender) == 0 && remote.lenders[lender]->service->statistics().lent.memory == 0; });
    named[i].drains = false;
    remote.tier->follow(named);
    remote.until([&] { return remote.connected() == kLenders; });
  }
}

constexpr Faults kAll{.drop = 0.01,
                      .duplicate = 0.1,
                      .delay = 0.1,
                      .corrupt_header = 0.01,
                      .corrupt_payload = 0.05,
                      .misdirect = 0.02,
                      .delay_us = 500'000};

INSTANTIATE_TEST_SUITE_P(Remote, RepairsCampaign,
                         ::testing::Values(Course{"drains", 1, false, {}}, Course{"drains_of_two", 2, false, {}},
                                           Course{"deaths_of_two", 2, true, {}}, Course{"faults", 1, false, kAll},
                                           Course{"faults_and_deaths", 2, true, kAll}),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace vmem::rdma
