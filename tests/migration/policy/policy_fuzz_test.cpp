// Random events against a plain model of what is resident. A failure names its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

class Fuzz {
 public:
  Fuzz(std::uint64_t seed, std::uint32_t prefetch_pages)
      : random_(seed),
        policy_(make_second_chance_policy({.prefetch_pages = prefetch_pages, .hbm_bytes = {64 * kPage, 32 * kPage}})) {}

  // Returns every answer of the policy, in order.
  std::vector<PageId> run(int events) {
    for (int i = 0; i < events; ++i) event();
    while (!regions_.empty()) end(regions_.begin()->first);
    return std::move(answers_);
  }

 private:
  std::uint32_t below(std::uint64_t n) { return std::uint32_t(random_() % n); }

  void event() {
    const std::uint32_t what = below(100);
    if (regions_.empty() || what < 2) return begin();
    const RegionShape& shape = std::next(regions_.begin(), below(regions_.size()))->second;
    const PageId page{shape.id, below(shape.pages)};
    if (what < 3)
      end(shape.id);
    else if (what < 45)
      scan(shape);
    else if (what < 55)
      policy_->used({.region = page.region, .first = page.index, .count = 1 + below(shape.pages)});
    else if (what < 65)
      arrive(page, below(2));
    else if (what < 70)
      leave(page);
    else if (what < 73)
      policy_->page_prefers(page, Preference(below(3)));
    else if (what < 88)
      evict();
    else
      prefetch();
  }

  void begin() {
    const RegionShape shape{{1 + below(12)}, 1 + below(80), kPage << below(2), int(below(2))};
    end(shape.id);
    regions_[shape.id] = shape;
    policy_->region_begins(shape);
  }

  void end(RegionId id) {
    regions_.erase(id);
    std::erase_if(resident_, [&](PageId page) { return page.region == id; });
    policy_->region_ends(id);
  }

  void scan(const RegionShape& shape) {
    std::uint32_t& at = heads_[shape.id];
    for (std::uint32_t i = 0, n = 1 + below(4); i < n; ++i) {
      at = (at + 1) % shape.pages;
      policy_->used({.region = shape.id, .first = at, .count = 1, .stream = std::uint16_t(below(20) == 0)});
      if (below(8)) arrive({shape.id, at}, false);
    }
  }

  void arrive(PageId page, bool prefetched) {
    if (resident_.insert(page).second) policy_->page_arrived(page, prefetched);
  }
  void leave(PageId page) {
    if (resident_.erase(page)) policy_->page_left(page);
  }

  void evict() {
    std::vector<PageId> out(below(12));
    const int device = int(below(2));
    const VictimQuery query{device, kPage << below(2), below(8) * kPage, below(2) == 0};
    out.resize(policy_->victims(query, out));
    std::set<PageId> distinct(out.begin(), out.end());
    EXPECT_EQ(distinct.size(), out.size());
    for (const PageId page : out) {
      EXPECT_TRUE(resident_.contains(page));
      EXPECT_EQ(regions_.at(page.region).device, device);
      if (below(4)) leave(page);
    }
    answers_.insert(answers_.end(), out.begin(), out.end());
  }

  void prefetch() {
    std::vector<PageId> out(below(20));
    const int device = int(below(2));
    const std::uint64_t room = below(20) * kPage;
    out.resize(policy_->prefetches({device, room}, out));
    std::set<PageId> distinct(out.begin(), out.end());
    EXPECT_EQ(distinct.size(), out.size());
    std::uint64_t bytes = 0;
    for (const PageId page : out) {
      ASSERT_TRUE(regions_.contains(page.region));
      const RegionShape& shape = regions_.at(page.region);
      EXPECT_TRUE(page.index < shape.pages && shape.device == device);
      EXPECT_FALSE(resident_.contains(page));
      bytes += shape.page_bytes;
      if (below(4)) arrive(page, true);
    }
    EXPECT_LE(bytes, room);
    answers_.insert(answers_.end(), out.begin(), out.end());
  }

  std::mt19937_64 random_;
  std::unique_ptr<Policy> policy_;
  std::map<RegionId, RegionShape> regions_;
  std::map<RegionId, std::uint32_t> heads_;
  std::set<PageId> resident_;
  std::vector<PageId> answers_;
};

TEST(PolicyFuzz, AnswersAreSoundAndTheSameForTheSameEvents) {
  std::size_t answers = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const std::uint32_t prefetch_pages = seed % 4 == 0 ? 0 : std::uint32_t(1) << seed % 6;
    const auto first = Fuzz(seed, prefetch_pages).run(2000);
    const auto second = Fuzz(seed, prefetch_pages).run(2000);
    EXPECT_EQ(first, second);
    answers += first.size();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  std::printf("seeds 1 to 300, %zu answers\n", answers);
  EXPECT_GT(answers, 100'000u);
}

}  // namespace
}  // namespace vmem::migration::testing
