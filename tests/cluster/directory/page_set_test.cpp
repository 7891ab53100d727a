// Sets of pages, compared with std::set.
#include "cluster/directory/page_set.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace vmem::cluster::directory {
namespace {

TEST(PageSet, DoesWhatASetDoes) {
  std::mt19937_64 random(5);
  for (const std::uint32_t pages : {1u, 63u, 64u, 65u, 300u}) {
    PageSet set(pages), other(pages);
    std::set<std::uint32_t> model, other_model;
    for (int round = 0; round < 2000; ++round) {
      const auto page = std::uint32_t(random() % pages);
      const std::uint64_t kind = random() % 100;
      if (kind == 0) {
        set.fill();
        for (std::uint32_t each = 0; each < pages; ++each) model.insert(each);
      } else if (kind == 1) {
        set.take(other);
        model.merge(other_model);
        other_model.clear();
      } else if (kind < 20) {
        other.insert(page);
        other_model.insert(page);
      } else if (kind < 40) {
        set.insert(page);
        model.insert(page);
      } else {
        set.erase(page);
        model.erase(page);
      }
      ASSERT_EQ(set.count(), model.size());
      ASSERT_EQ(set.empty(), model.empty());
      ASSERT_EQ(other.count(), other_model.size());
      ASSERT_EQ(set.contains(page), model.contains(page));
      if (model.empty()) continue;
      const auto from = std::uint32_t(random() % (pages + 1));
      const auto next = model.lower_bound(from);
      ASSERT_EQ(set.next(from), next == model.end() ? *model.begin() : *next) << from << " of " << pages;
    }
    std::set<std::uint32_t> walked;
    for_each_until(set, [&](std::uint32_t page) { return walked.insert(page).second; });
    EXPECT_EQ(walked, model);
  }
}

}  // namespace
}  // namespace vmem::cluster::directory
