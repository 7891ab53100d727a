// The remote tier and its lenders under random faults of the network.
#include <fmt/format.h>

#include <iterator>
#include <random>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Outcome;
using tiers::SlotId;

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 8, kAccidents = 30;
#else
constexpr std::uint64_t kUsualSeeds = 32, kAccidents = 80;
#endif

struct Accidents {
  const char* name;
  Faults faults;
  std::uint32_t replicas = 1;
  std::uint64_t count = kAccidents;
  bool may_lose = true;
};
constexpr Accidents kKinds[] = {
    {"payloads", {.corrupt_payload = 0.6}},
    {"headers", {.corrupt_header = 0.25}},
    {"misdirected", {.misdirect = 0.5}, 1, kAccidents / 2},
    {"duplicates", {.duplicate = 0.5}},
    // Silence proves no loss.
    {"cuts", {.delay = 0.05, .cut_out = 0.03, .cut_in = 0.03, .delay_us = 3'000'000}, 1, kAccidents / 4, false},
    {"everything",
     {.drop = 0.02,
      .duplicate = 0.1,
      .delay = 0.1,
      .corrupt_header = 0.02,
      .corrupt_payload = 0.1,
      .misdirect = 0.05,
      .cut_out = 0.01,
      .cut_in = 0.01,
      .delay_us = 3'000'000},
     2}};

// Two lenders, on clocks that drift.
class WithAccidents {
 public:
  WithAccidents(std::uint64_t seed, const Accidents& accidents)
      : accidents_(accidents), remote_(0, accidents.replicas), random_(seed) {
    remote_.seed = seed;
    remote_.drift();
    for (const std::uint64_t id : {1, 2}) {
      remote_.lenders.emplace_back();
      remote_.start_lender(id);
    }
    remote_.start_tier();
    set_faults(accidents.faults);
    for (int i = 0; i < 6; ++i) pages_.push_back({remote_.slot()});
  }

  void meet_with_accidents() {
    while (met() < accidents_.count && !::testing::Test::HasFailure()) {
      ASSERT_LT(version_ + loads_, 5'000u) << "operations meet with no accidents any more";
      const std::uint64_t page = random_() % pages_.size();
      if (pages_[page].version == 0 || random_() % 3 == 0) {
        store(page);
      } else {
        load(page);
      }
    }
    fmt::print("{}: {} accidents, {} stores, {} loads, {} lost, {} late\n", accidents_.name, met(), version_, loads_,
               lost_, late_);
  }
  void end_faults() {
    set_faults({});
    remote_.pass(80'000'000);  // connections that are silent end
  }
  // A page whose load was late is there.
  void work_again() {
    for (std::uint64_t page = 0; page < pages_.size() && !::testing::Test::HasFailure(); ++page) {
      if (pages_[page].version != 0 && !accidents_.may_lose) {
        EXPECT_TRUE(remote_.loads(pages_[page].slot, page, pages_[page].version));
      }
      EXPECT_EQ(remote_.store(pages_[page].slot, page, ++version_).outcome, Outcome::done);
      EXPECT_TRUE(remote_.loads(pages_[page].slot, page, version_));
    }
  }

 private:
  struct Page {
    SlotId slot;
    std::uint64_t version = 0;  // 0: nothing is stored
  };
  void set_faults(const Faults& faults) {
    remote_.faults->set_faults(faults);
    for (const auto& lender : remote_.lenders) lender->faults->set_faults(faults);
  }
  std::uint64_t met() const {
    std::uint64_t sum = 0;
    const auto add = [&](const FaultCounts& c) {
      sum += c.dropped + c.headers_corrupted + c.payloads_corrupted + c.misdirected + c.duplicated + c.cut;
    };
    add(remote_.faults->counts());
    for (const auto& lender : remote_.lenders) add(lender->faults->counts());
    return sum;
  }
  void store(std::uint64_t page) {
    ++version_;
    const bool stored = remote_.store(pages_[page].slot, page, version_).outcome == Outcome::done;
    pages_[page].version = stored ? version_ : 0;
  }
  void load(std::uint64_t page) {
    ++loads_;
    Page& known = pages_[page];
    const auto loaded = remote_.load(known.slot, page, known.version);
    if (loaded.outcome == Outcome::done) {
      EXPECT_TRUE(remote_.holds(1, page, known.version)) << "wrong bytes";
    } else if (loaded.outcome == Outcome::lost) {
      EXPECT_TRUE(accidents_.may_lose) << loaded.error.message;
      ++lost_;
      known.version = 0;
    } else {
      ++late_;
    }
  }

  const Accidents& accidents_;
  SteppedRemote remote_;
  std::mt19937_64 random_;
  std::vector<Page> pages_;
  std::uint64_t version_ = 0, loads_ = 0, lost_ = 0, late_ = 0;
};

class RemoteFaults : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, RemoteFaults, ::testing::Range<std::uint64_t>(0, test::kShards));

// Under any faults, loaded data is right or reported lost. Without faults, all operations work
// again.
TEST_P(RemoteFaults, NoByteIsWrong) {
  log::set_level(log::Level::error);
  const auto run = [](std::uint64_t seed) {
    WithAccidents with(seed, kKinds[seed % std::size(kKinds)]);
    with.meet_with_accidents();
    with.end_faults();
    with.work_again();
  };
  test::run_seeds(GetParam(), kUsualSeeds, run, "VMEM_TEST_LENDING_SEEDS");
}

}  // namespace
}  // namespace vmem::rdma
