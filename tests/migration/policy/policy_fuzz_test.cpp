// Random events against a simple model of the resident pages. A failure prints its seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "migration/policy/look_ahead.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;

std::unique_ptr<Policy> second_chance(std::uint64_t seed) {
  const std::uint32_t prefetch_pages = seed % 4 == 0 ? 0 : std::uint32_t(1) << seed % 6;
  return make_second_chance_policy({.prefetch_pages = prefetch_pages, .hbm_bytes = {64 * kPage, 32 * kPage}});
}
std::unique_ptr<Policy> look_ahead(std::uint64_t seed) {
  return make_look_ahead_policy({{64 * kPage, 32 * kPage}}, second_chance(seed));
}

// declared: no region dies, and none is used in a repeating order. undeclared: some regions are.
enum class Program { declared, undeclared };

class Fuzz {
 public:
  Fuzz(std::uint64_t seed, std::unique_ptr<Policy> policy, Program program)
      : random_(seed), program_(program), policy_(std::move(policy)) {}

  // Returns all answers of the policy, in order.
  std::vector<PageId> run(int events) {
    for (int i = 0; program_ == Program::undeclared && i < 20; ++i) begin();
    for (int i = 0; i < events; ++i) event();
    while (!regions_.empty()) end(regions_.begin()->first);
    return std::move(answers_);
  }
  std::size_t left_ahead() const { return left_ahead_; }

 private:
  std::uint32_t below(std::uint64_t n) { return std::uint32_t(random_() % n); }

  void event() {
    if (program_ == Program::undeclared && below(16) != 0) return undeclared_event();
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
      arrive(page, below(2) == 0 ? Cause::use : Cause::prefetch);
    else if (what < 70)
      leave(page);
    else if (what < 73)
      policy_->page_prefers(page, Preference(below(3)));
    else if (what < 88)
      evict();
    else
      prefetch();
  }

  // A pass over all undeclared regions, again and again: look-ahead follows it.
  void undeclared_event() {
    if (regions_.empty()) return begin();
    const std::uint32_t what = below(40);
    if (what < 2) return evict();
    if (what < 4) return prefetch();
    if (what < 8) return leave_ahead();
    auto next = regions_.upper_bound(last_used_);
    for (; next != regions_.end() && !next->second.undeclared; ++next) {
    }
    last_used_ = next == regions_.end() ? RegionId{} : next->first;
    if (next == regions_.end()) return;
    // A region as a whole, or a block that lies in some of its pages: mostly the same one.
    const RegionShape& shape = next->second;
    const bool odd = below(16) == 0;
    const std::uint32_t first = !shape.shared ? 0 : odd ? below(shape.pages) : shape.id.value % shape.pages;
    const std::uint32_t count = !shape.shared ? shape.pages : odd ? 1 + below(shape.pages - first) : 1;
    set_dead({shape.id, first}, count, false);
    policy_->used({.region = shape.id, .first = first, .count = count});
    for (std::uint32_t i = first; i < first + count; ++i) arrive({shape.id, i}, Cause::use);
    if (shape.id.value % 3 == 0) set_dead({shape.id, first}, count, true);
  }

  // Tells the policy only if something changes.
  void set_dead(PageId first, std::uint32_t count, bool dead) {
    bool changed = false;
    for (std::uint32_t i = 0; i < count; ++i) {
      const PageId page{first.region, first.index + i};
      changed = (dead ? dead_.insert(page).second : dead_.erase(page) != 0) || changed;
    }
    if (changed) policy_->pages_dead(first, count, dead);
  }

  void begin() {
    RegionShape shape{{1 + below(12)}, 1 + below(80), kPage << below(2), int(below(2))};
    // Of few pages, so that passes are short.
    if (program_ == Program::undeclared && below(3) != 0) {
      shape = {{20 + below(20)}, 1 + below(6), shape.page_bytes, shape.device};
      shape.undeclared = true;
      shape.shared = below(2) == 0;
    }
    end(shape.id);
    regions_[shape.id] = shape;
    policy_->region_begins(shape);
  }

  void end(RegionId id) {
    regions_.erase(id);
    std::erase_if(dead_, [&](PageId page) { return page.region == id; });
    std::erase_if(resident_, [&](PageId page) { return page.region == id; });
    policy_->region_ends(id);
  }

  void scan(const RegionShape& shape) {
    std::uint32_t& at = heads_[shape.id];
    for (std::uint32_t i = 0, n = 1 + below(4); i < n; ++i) {
      at = (at + 1) % shape.pages;
      policy_->used({.region = shape.id, .first = at, .count = 1, .stream = std::uint16_t(below(20) == 0)});
      if (below(8)) arrive({shape.id, at}, Cause::use);
    }
  }

  void arrive(PageId page, Cause cause) {
    if (resident_.insert(page).second) policy_->page_arrived(page, cause);
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
      if (below(4)) arrive(page, Cause::prefetch);
    }
    EXPECT_LE(bytes, room);
    answers_.insert(answers_.end(), out.begin(), out.end());
  }

  void leave_ahead() {
    std::vector<PageId> out(below(12));
    const int device = int(below(2));
    const PrefetchQuery query{device, 64 * kPage, below(20) * kPage};
    out.resize(policy_->leaves(query, out));
    std::set<PageId> distinct(out.begin(), out.end());
    EXPECT_EQ(distinct.size(), out.size());
    for (const PageId page : out) {
      EXPECT_TRUE(resident_.contains(page));
      EXPECT_EQ(regions_.at(page.region).device, device);
      EXPECT_FALSE(dead_.contains(page));
      if (below(4)) leave(page);
    }
    left_ahead_ += out.size();
    answers_.insert(answers_.end(), out.begin(), out.end());
  }

  std::mt19937_64 random_;
  const Program program_;
  std::unique_ptr<Policy> policy_;
  std::map<RegionId, RegionShape> regions_;
  std::map<RegionId, std::uint32_t> heads_;
  std::set<PageId> dead_;
  RegionId last_used_{};
  std::set<PageId> resident_;
  std::vector<PageId> answers_;
  std::size_t left_ahead_ = 0;
};

template <class Make>
void play(Make&& make, Program program) {
  std::size_t answers = 0, left_ahead = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Fuzz fuzz(seed, make(seed), program);
    const auto first = fuzz.run(2000);
    const auto second = Fuzz(seed, make(seed), program).run(2000);
    EXPECT_EQ(first, second);
    answers += first.size();
    left_ahead += fuzz.left_ahead();
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
  std::printf("seeds 1 to 300, %zu answers, of which %zu ahead of demand\n", answers, left_ahead);
  EXPECT_GT(answers, 100'000u);
  if (program == Program::undeclared) {
    EXPECT_GT(left_ahead, 1000u) << "or look-ahead expected nothing, and this shows nothing";
  }
}

TEST(PolicyFuzz, AnswersAreSoundAndTheSameForTheSameEvents) { play(second_chance, Program::declared); }
TEST(PolicyFuzz, LookAheadsAnswersAreSoundForDeclaredRegions) { play(look_ahead, Program::declared); }
TEST(PolicyFuzz, LookAheadsAnswersAreSoundForUndeclaredRegions) { play(look_ahead, Program::undeclared); }

}  // namespace
}  // namespace vmem::migration::testing
