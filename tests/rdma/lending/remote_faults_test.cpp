// The remote tier and its lenders under random faults of the network.
#include <fmt/format.h>

#include <random>

#include "campaign/seeds.hpp"
#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Outcome;
using tiers::SlotId;

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kAccidents = 150;
#else
constexpr std::uint64_t kAccidents = 1000;
#endif

struct Accidents {
  const char* name;
  Faults faults;
  std::uint32_t replicas;
  std::uint64_t count = kAccidents;
};
class WithAccidents : public ::testing::TestWithParam<Accidents> {};

// Under any faults, loaded data is right or reported lost. Without faults, all operations work
// again.
TEST_P(WithAccidents, NoByteIsWrong) {
  const Accidents& accidents = GetParam();
  SteppedRemote remote(2, accidents.replicas);
  remote.seed = test::printed_seed();
  remote.start_tier();
  remote.faults->set_faults(accidents.faults);
  for (const auto& lender : remote.lenders) lender->faults->set_faults(accidents.faults);
  std::mt19937_64 random(remote.seed);
  struct Known {
    SlotId slot;
    std::uint64_t version = 0;  // 0: nothing is stored
  };
  std::vector<Known> pages;
  for (int i = 0; i < 6; ++i) pages.push_back({remote.slot()});
  const auto met = [&] {
    std::uint64_t sum = 0;
    const auto add = [&](const FaultCounts& c) {
      sum += c.dropped + c.headers_corrupted + c.payloads_corrupted + c.misdirected + c.duplicated;
    };
    add(remote.faults->counts());
    for (const auto& lender : remote.lenders) add(lender->faults->counts());
    return sum;
  };
  std::uint64_t version = 0, loads = 0, lost = 0;
  while (met() < accidents.count) {
    const std::uint64_t page = random() % pages.size();
    Known& known = pages[page];
    if (known.version == 0 || random() % 3 == 0) {
      ++version;
      known.version = remote.store(known.slot, page, version).outcome == Outcome::done ? version : 0;
      continue;
    }
    ++loads;
    const auto loaded = remote.load(known.slot, page, known.version);
    if (loaded.outcome == Outcome::done) {
      ASSERT_TRUE(remote.holds(1, page, known.version)) << "wrong bytes";
    } else {
      ++lost;
      known.version = 0;
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
  fmt::print("{}: {} accidents, {} stores, {} loads, {} lost, seed {}\n", accidents.name, met(), version, loads, lost,
             remote.seed);
  remote.faults->set_faults({});
  for (const auto& lender : remote.lenders) lender->faults->set_faults({});
  remote.pass(10'000'000);
  for (std::uint64_t page = 0; page < pages.size(); ++page) {
    ASSERT_EQ(remote.store(pages[page].slot, page, ++version).outcome, Outcome::done);
    ASSERT_TRUE(remote.loads(pages[page].slot, page, version));
  }
}

INSTANTIATE_TEST_SUITE_P(Remote, WithAccidents,
                         ::testing::Values(Accidents{"payloads", {.corrupt_payload = 0.6}, 1},
                                           Accidents{"headers", {.corrupt_header = 0.25}, 1},
                                           Accidents{"misdirected", {.misdirect = 0.5}, 1, kAccidents / 5},
                                           Accidents{"duplicates", {.duplicate = 0.5}, 1},
                                           Accidents{"everything",
                                                     {.drop = 0.02,
                                                      .duplicate = 0.1,
                                                      .delay = 0.1,
                                                      .corrupt_header = 0.02,
                                                      .corrupt_payload = 0.1,
                                                      .misdirect = 0.05,
                                                      .delay_us = 3'000'000},
                                                     2}),
                         [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace vmem::rdma
