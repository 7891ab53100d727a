// The policy's cost at half a million pages. The limits are several times what an idle machine
// needs, and catch a wrong order of growth.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>

#include "migration/policy/allocation_counter.hpp"
#include "migration/policy/page_state.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

constexpr std::uint32_t kPages = 500'000;
constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kSlower = 30;
#else
constexpr double kSlower = 5;
#endif

struct PolicyCost : ::testing::Test {
  const std::int64_t before = live_bytes();
  std::unique_ptr<Policy> policy = make_second_chance_policy({.prefetch_pages = 8, .hbm_bytes = {kPages * kPageBytes}});

  PolicyCost() {
    policy->region_begins({.id = {1}, .pages = kPages, .page_bytes = kPageBytes});
    policy->used({.region = {1}, .first = 0, .count = kPages});
    for (std::uint32_t i = 0; i < kPages; ++i) policy->page_arrived({{1}, i}, Cause::use);
  }

  template <class Work>
  void expect_ns_each(const char* what, std::uint64_t count, double ns_max, Work work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const auto spent = std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
    std::printf("%-40s %8.1f ns each\n", what, spent / double(count));
    EXPECT_LT(spent / double(count), ns_max * kSlower) << what;
  }
};

TEST_F(PolicyCost, MemoryIsAtMost24BytesAPage) {
  EXPECT_EQ(sizeof(PageState), 24u);
  EXPECT_LT(double(live_bytes() - before) / kPages, 24.1);
}

TEST_F(PolicyCost, UsesAndVictims) {
  expect_ns_each("use, whole region", kPages, 100, [&] { policy->used({.region = {1}, .first = 0, .count = kPages}); });
  expect_ns_each("use, one page", kPages, 250, [&] {
    for (std::uint32_t i = 0; i < kPages; ++i) policy->used({.region = {1}, .first = i, .count = 1});
  });
  std::vector<PageId> out(64);
  expect_ns_each("victim, 64 a query, taken", kPages / 2, 500, [&] {
    for (std::uint32_t i = 0; i < kPages / 128; ++i) {
      const std::size_t n = policy->victims({.page_bytes = kPageBytes, .bytes_wanted = 64 * kPageBytes}, out);
      for (std::size_t j = 0; j < n; ++j) policy->page_left(out[j]);
    }
  });
  expect_ns_each("victim, 1 a query, all refused", kPages, 500, [&] {
    for (std::uint32_t i = 0; i < kPages; ++i)
      policy->victims({.page_bytes = kPageBytes, .bytes_wanted = kPageBytes, .again = i > 0}, std::span(out).first(1));
  });
}

TEST_F(PolicyCost, PrefetchQueries) {
  std::vector<PageId> out(64);
  expect_ns_each("use and prefetch query, all resident", 10'000, 2000, [&] {
    for (std::uint32_t i = 0; i < 10'000; ++i) {
      policy->used({.region = {1}, .first = i, .count = 1});
      policy->prefetches({.bytes_room = 64 * kPageBytes}, out);
    }
  });
}

}  // namespace
}  // namespace vmem::migration::testing
