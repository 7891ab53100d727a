// The conformance suite for all policies. The look-ahead policy meets it with regions that it
// leaves to another policy, and with undeclared ones, which it follows itself.
#include "migration/policy/policy_conformance.hpp"

#include "migration/policy/forwarding_policy.hpp"
#include "migration/policy/look_ahead.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {
namespace {

constexpr std::uint64_t kBudget = std::uint64_t{128} << 20;

std::unique_ptr<Policy> second_chance(std::uint32_t prefetch_pages) {
  return make_second_chance_policy({.prefetch_pages = prefetch_pages, .hbm_bytes = {kBudget, kBudget}});
}
std::unique_ptr<Policy> look_ahead(std::uint32_t prefetch_pages) {
  return make_look_ahead_policy({{kBudget, kBudget}}, second_chance(prefetch_pages));
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(SecondChance, PolicyConformance,
                         ::testing::Values(PolicyMaker([] { return second_chance(8); })));
INSTANTIATE_TEST_SUITE_P(SecondChanceWithoutPrefetch, PolicyConformance,
                         ::testing::Values(PolicyMaker([] { return second_chance(0); })));
INSTANTIATE_TEST_SUITE_P(LookAhead, PolicyConformance, ::testing::Values(PolicyMaker([] { return look_ahead(8); })));
INSTANTIATE_TEST_SUITE_P(LookAheadWithoutPrefetch, PolicyConformance,
                         ::testing::Values(PolicyMaker([] { return look_ahead(0); })));
INSTANTIATE_TEST_SUITE_P(LookAheadAtUndeclaredRegions, PolicyConformance, ::testing::Values(PolicyMaker([] {
                           return std::make_unique<UndeclaredRegions>(look_ahead(8));
                         })));

}  // namespace vmem::migration::testing
