// The toy policy's tests, in the order of docs/extending.md: the conformance suite, hit ratios in a
// simulated cache, and a mover on the emulated driver that evicts what the policy chooses.
#include "toy_policy.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "migration/mover_harness.hpp"
#include "migration/policy/cache_simulator.hpp"
#include "migration/policy/forwarding_policy.hpp"
#include "migration/policy/look_ahead.hpp"
#include "migration/policy/policy_conformance.hpp"

namespace vmem::migration::testing {

INSTANTIATE_TEST_SUITE_P(Fifo, PolicyConformance, ::testing::Values(PolicyMaker(make_fifo_policy)));
// As the runtime would use it: behind the policy that follows programs which repeat themselves.
INSTANTIATE_TEST_SUITE_P(FifoBehindLookAhead, PolicyConformance, ::testing::Values(PolicyMaker([] {
                           constexpr std::uint64_t kBudget = std::uint64_t{128} << 20;
                           return make_look_ahead_policy({{kBudget, kBudget}}, make_fifo_policy());
                         })));

namespace {

constexpr VictimQuery kOnePage{.page_bytes = kPageBytes, .bytes_wanted = kPageBytes};

// The suite does not ask for this.
TEST(ToyPolicy, DeadPagesGoFirst) {
  const auto policy = make_fifo_policy();
  for (std::uint32_t region = 1; region <= 2; ++region) {
    policy->region_begins({.id = {region}, .pages = 1, .page_bytes = kPageBytes});
    policy->page_arrived({{region}, 0}, Cause::use);
  }
  PageId best[1];
  policy->pages_dead({{2}, 0}, 1, true);
  ASSERT_EQ(policy->victims(kOnePage, best), 1u);
  EXPECT_EQ(best[0].region.value, 2u);
  policy->pages_dead({{2}, 0}, 1, false);
  ASSERT_EQ(policy->victims(kOnePage, best), 1u);
  EXPECT_EQ(best[0].region.value, 1u);
}

TEST(ToyPolicy, HitsAreThoseOfFirstInFirstOut) {
  constexpr std::uint32_t kFrames = 32;
  const Trace scan = cyclic_scan(2 * kFrames, 5), skewed = zipf(8 * kFrames, 0.9, 10'000, 7);
  EXPECT_EQ(policy_hits(*make_fifo_policy(), scan, kFrames), 0u);
  const std::uint64_t hits = policy_hits(*make_fifo_policy(), skewed, kFrames);
  EXPECT_GT(hits, clock_hits(skewed, kFrames) / 2);
  EXPECT_LE(hits, clock_hits(skewed, kFrames));
}

// Notes which pages the policy offered, and which of them the mover took.
class Recorder final : public ForwardingPolicy {
 public:
  using ForwardingPolicy::ForwardingPolicy;
  std::vector<std::uint32_t> offered_first;  // the best page of each query
  std::vector<std::uint32_t> left;

  std::size_t victims(const VictimQuery& query, std::span<PageId> out) override {
    const std::size_t count = ForwardingPolicy::victims(query, out);
    if (!query.again) offered_.clear();
    if (!query.again && count != 0) offered_first.push_back(out[0].index);
    offered_.insert(out.begin(), out.begin() + std::ptrdiff_t(count));
    return count;
  }
  void page_left(PageId page) override {
    EXPECT_TRUE(offered_.contains(page)) << "the policy did not offer page " << page.index;
    left.push_back(page.index);
    ForwardingPolicy::page_left(page);
  }

 private:
  std::set<PageId> offered_;
};

class ToyPolicyRun : public MoverTest {
 protected:
  static constexpr std::uint32_t kFrames = 4, kPages = 12;

  // Writes all pages, three times as many as HBM holds.
  void SetUp() override {
    start({.hbm_pages = kFrames, .make_policy = [this] {
             auto made = std::make_unique<Recorder>(make_fifo_policy());
             recorder = made.get();
             return made;
           }});
    region = &allocate(kPages);
    user = &actor();
    for (std::uint32_t i = 0; i < kPages; ++i) write_to_the_end(*user, writing(*region, i), value_of(i));
  }
  static unsigned char value_of(std::uint32_t page) { return static_cast<unsigned char>(100 + page); }
  void expect_all_bytes() {
    for (std::uint32_t i = 0; i < kPages; ++i) expect_bytes(*user, *region, i, value_of(i));
  }

  Recorder* recorder = nullptr;
  Region* region = nullptr;
  Actor* user = nullptr;
};

TEST_F(ToyPolicyRun, ThePageThatCameFirstLeavesFirstAndAllBytesAreKept) {
  for (std::uint32_t i = 0; i < kPages; ++i) EXPECT_EQ(in_hbm(*region, i), i >= kPages - kFrames);
  expect_all_bytes();
  check();
  ASSERT_EQ(recorder->left.size(), 2 * kPages - kFrames);
  for (std::uint32_t i = 0; i < recorder->left.size(); ++i) EXPECT_EQ(recorder->left[i], i % kPages);
  EXPECT_EQ(inside->counters().evictions, recorder->left.size());
}

TEST_F(ToyPolicyRun, APageInUseIsRefusedAndTheNextOneTaken) {
  const std::uint32_t oldest = kPages - kFrames;
  Actor& other = actor();
  ASSERT_TRUE(acquire(other, reading(*region, oldest)));
  recorder->offered_first.clear();
  recorder->left.clear();
  expect_bytes(*user, *region, 0, value_of(0));
  EXPECT_EQ(recorder->offered_first, std::vector{oldest});
  EXPECT_EQ(recorder->left, std::vector{oldest + 1});
  release(other, reading(*region, oldest));
  finish_work(other);
  expect_all_bytes();
}

}  // namespace
}  // namespace vmem::migration::testing
