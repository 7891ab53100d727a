// The order and the quota of copies, compared with a model: a list that is searched.
#include "migration/policy/copy_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <ranges>
#include <vector>

namespace vmem::migration {
namespace {

using pagetable::PageId;

struct Modelled {
  PageId page;
  std::uint64_t bytes = 0;
  std::uint64_t used_at = 0;  // 0: not yet
};

class Model {
 public:
  void begins(PageId page, std::uint64_t bytes) { copies_.push_back({page, bytes}); }
  void used(PageId page) {
    if (const auto found = find(page); found != copies_.end()) found->used_at = ++now_;
  }
  void ends(PageId page) {
    if (const auto found = find(page); found != copies_.end()) copies_.erase(found);
  }
  std::vector<PageId> candidates() const {
    std::vector<Modelled> used;
    std::ranges::copy_if(copies_, std::back_inserter(used), [](const Modelled& each) { return each.used_at != 0; });
    std::ranges::sort(used, {}, &Modelled::used_at);
    std::vector<PageId> pages;
    for (const Modelled& each : used) pages.push_back(each.page);
    return pages;
  }
  std::uint64_t bytes(bool candidates_only) const {
    std::uint64_t sum = 0;
    for (const Modelled& each : copies_) sum += !candidates_only || each.used_at != 0 ? each.bytes : 0;
    return sum;
  }
  bool has(PageId page) const { return std::ranges::find(copies_, page, &Modelled::page) != copies_.end(); }

 private:
  std::vector<Modelled>::iterator find(PageId page) { return std::ranges::find(copies_, page, &Modelled::page); }
  std::vector<Modelled> copies_;
  std::uint64_t now_ = 0;
};

constexpr PageId page(std::uint32_t index, std::uint32_t region = 1) { return {{region}, index}; }

TEST(CopyCache, KeepsTheOrderAndTheBytesOfTheModel) {
  constexpr std::uint64_t kQuota = 40;
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    CopyCache cache(kQuota);
    Model model;
    for (int step = 0; step < 2000; ++step) {
      const PageId any = page(random() % 12, 1 + random() % 3);
      const std::uint64_t bytes = 1 + any.region.value * 2;
      switch (random() % 3) {
        case 0:
          if (!model.has(any)) {
            cache.begins(any, bytes);
            model.begins(any, bytes);
          }
          break;
        case 1:
          cache.used(any);
          model.used(any);
          break;
        default:
          cache.ends(any);
          model.ends(any);
      }
      const std::vector<PageId> order(cache.candidates().begin(), cache.candidates().end());
      ASSERT_EQ(order, model.candidates()) << "seed " << seed << ", step " << step;
      ASSERT_EQ(cache.bytes(), model.bytes(false));
      ASSERT_EQ(cache.candidate_bytes(), model.bytes(true));
      ASSERT_EQ(cache.has(any), model.has(any));
      const std::uint64_t more = random() % 60, wanted = model.bytes(false) + more;
      ASSERT_EQ(cache.excess(more), wanted > kQuota ? wanted - kQuota : 0);
    }
  }
}

TEST(CopyCache, APageThatWasNotUsedYetCountsAndIsNoCandidate) {
  CopyCache cache(10);
  cache.begins(page(0), 6);
  cache.begins(page(1), 6);
  EXPECT_TRUE(cache.candidates().empty());
  EXPECT_EQ(cache.excess(), 2u);
  cache.used(page(1));
  EXPECT_EQ(cache.candidates().front(), page(1));
  EXPECT_FALSE(cache.is_used(page(0)));
}

TEST(CopyCache, WithoutAQuotaAllIsExcessAndWithoutALimitNothing) {
  CopyCache none(0), all(UINT64_MAX);
  for (CopyCache* each : {&none, &all}) each->begins(page(3), 7);
  EXPECT_EQ(none.excess(5), 12u);
  EXPECT_EQ(all.excess(1ull << 50), 0u);
}

}  // namespace
}  // namespace vmem::migration
