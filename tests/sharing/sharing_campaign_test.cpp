// Random loads of published pages from nodes that evict and fetch them, die and start again, while
// messages are delayed, lost and damaged, and while nothing passes one way. The directory is a
// table of who had a page at some time.
#include <fmt/format.h>

#include <array>
#include <iterator>
#include <random>

#include "base/log.hpp"
#include "campaign/seeds.hpp"
#include "sharing/sharing_fixture.hpp"

namespace vmem::sharing {
namespace {

using rdma::Faults;
using rdma::Way;
using tiers::Completion;
using tiers::Outcome;

// Sanitizers take ten times as long.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kUsualSeeds = 8, kSteps = 40;
#else
constexpr std::uint64_t kUsualSeeds = 32, kSteps = 100;
#endif

struct Course {
  const char* name;
  std::uint64_t longest_cut;  // us, of one node at a time
  bool may_fail = false;      // loads, for a time
  bool may_lose = false;      // pages that a node has
  Faults faults = {};
};
constexpr std::uint64_t kShortCut = 6'000'000, kLongCut = 45'000'000;
constexpr Course kCourses[] = {
    {"short cuts", kShortCut},
    {"long cuts", kLongCut, true},
    // Silence proves no loss.
    {"silence",
     kShortCut,
     true,
     false,
     {.drop = 0.02, .duplicate = 0.1, .delay = 0.2, .cut_out = 0.01, .cut_in = 0.01, .delay_us = 3'000'000}},
    {"damage",
     kShortCut,
     true,
     true,
     {.drop = 0.02,
      .duplicate = 0.1,
      .delay = 0.1,
      .corrupt_header = 0.05,
      .corrupt_payload = 0.1,
      .misdirect = 0.02,
      .delay_us = 500'000}}};

struct Counts {
  std::uint64_t loads = 0, failed = 0, lost = 0, deaths = 0, cuts = 0;
};

class Campaign : public Sharing {
 public:
  Campaign(std::uint64_t chosen, const Course& course) : Sharing(chosen), course_(course), random_(chosen) {
    for (std::uint32_t page = 0; page < kPages; ++page) hold(page, any_node());
    set_faults(course.faults);
  }
  void TestBody() override {}

  void play() {
    for (std::uint64_t step = 0; step < kSteps && !HasFailure(); ++step) {
      const auto page = static_cast<std::uint32_t>(random_() % kPages);
      const std::uint64_t what = random_() % 32;
      if (what == 0) die(any_node());
      if (what == 1 || what == 2) cut_off(any_node());
      if (what > 2 && what < 13) hold(page, any_node());
      if (what == 13) at(any_node()).holder.pages.erase(page);
      if (what > 13) load_some();
    }
  }
  // Then each page is there that a node has.
  void end_faults() {
    set_faults({});
    cut.end();
    const std::uint64_t end_us = clock.now_us() + 80'000'000;  // connections that are silent end
    until([&] { return clock.now_us() >= end_us; });
    may_fail_ = may_lose_ = false;
    finder.reported.clear();
    for (std::uint32_t page = 0; page < kPages; ++page) ended(page, is_held(page), load(page));
  }
  Counts counts;

 private:
  NodeId any_node() { return random_() % 2 ? kFirst : kSecond; }
  void set_faults(const Faults& faults) {
    reader_faults->set_faults(faults);
    for (const auto& [id, server] : servers) server->faults->set_faults(faults);
  }
  void hold(std::uint32_t page, NodeId node) {
    at(node).holder.hold(page);
    auto& where = finder.where[page];
    std::erase(where, node);
    where.insert(random_() % 2 ? where.begin() : where.end(), node);
    finder.reported.erase({page, node});
  }
  bool is_held(std::uint32_t page) const {
    return std::ranges::any_of(servers, [&](const auto& each) { return each.second->holder.pages.contains(page); });
  }
  void die(NodeId node) {
    ++counts.deaths;
    servers.at(node).reset();
    servers.at(node) = std::make_unique<Server>(*this, node, 1 + counts.deaths);
    at(node).faults->set_faults(course_.faults);
  }
  void cut_off(NodeId node) {
    ++counts.cuts;
    cut.begin(kReader, node, std::array{Way::out, Way::in, Way::both}[random_() % 3], random_() % course_.longest_cut);
  }

  // Pages that differ, at the same time.
  void load_some() {
    std::map<std::uint32_t, std::uint64_t> loading;
    for (std::uint64_t i = 0; i <= random_() % 3; ++i) {
      const auto page = static_cast<std::uint32_t>(random_() % kPages);
      if (!loading.contains(page)) loading[page] = submit(page);
    }
    for (const auto& [page, id] : loading) {
      until([&] { return completion(id) != nullptr; });
      if (HasFailure()) return;
      ended(page, is_held(page), *completion(id));
    }
    completions.clear();
  }
  void ended(std::uint32_t page, bool is_held, const Completion& end) {
    ++counts.loads;
    if (end.outcome == Outcome::done) {
      EXPECT_TRUE(is_held && holds(page)) << "wrong bytes";
    } else if (end.outcome == Outcome::lost) {
      ++counts.lost;
      EXPECT_TRUE(!is_held || may_lose_) << end.error.message;
    } else {
      ++counts.failed;
      EXPECT_TRUE(may_fail_) << end.error.message;
    }
  }

  const Course& course_;
  std::mt19937_64 random_;
  bool may_fail_ = course_.may_fail, may_lose_ = course_.may_lose;
};

class SharingCampaign : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Shards, SharingCampaign, ::testing::Range<std::uint64_t>(0, test::kShards));

TEST_P(SharingCampaign, NoByteIsWrongAndOnlyWhatNoNodeHasIsLost) {
  log::set_level(log::Level::error);
  const auto run = [](std::uint64_t seed) {
    const Course& course = kCourses[seed / test::kShards % std::size(kCourses)];
    Campaign campaign(seed, course);
    campaign.play();
    if (!HasFailure()) campaign.end_faults();
    const Counts& counts = campaign.counts;
    fmt::print("{}: {} loads, {} late, {} lost, {} deaths, {} cuts\n", course.name, counts.loads, counts.failed,
               counts.lost, counts.deaths, counts.cuts);
  };
  test::run_seeds(GetParam(), kUsualSeeds, run, "VMEM_TEST_LENDING_SEEDS");
}

}  // namespace
}  // namespace vmem::sharing
