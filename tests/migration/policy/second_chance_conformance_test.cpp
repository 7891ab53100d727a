#include "migration/policy/policy_conformance.hpp"
#include "migration/policy/second_chance.hpp"

namespace vmem::migration::testing {

constexpr std::uint64_t kBudget = std::uint64_t{128} << 20;

INSTANTIATE_TEST_SUITE_P(SecondChance, PolicyConformance, ::testing::Values(PolicyMaker([] {
                           return make_second_chance_policy({.prefetch_pages = 8, .hbm_bytes = {kBudget, kBudget}});
                         })));
INSTANTIATE_TEST_SUITE_P(SecondChanceWithoutPrefetch, PolicyConformance, ::testing::Values(PolicyMaker([] {
                           return make_second_chance_policy({.prefetch_pages = 0, .hbm_bytes = {kBudget, kBudget}});
                         })));

}  // namespace vmem::migration::testing
