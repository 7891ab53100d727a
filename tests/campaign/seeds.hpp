// Random tests that run by seed: which seeds a shard runs, and how one is repeated (--seed=N or VMEM_TEST_SEED=N).
// VMEM_TEST_SEEDS sets how many seeds run in all, VMEM_TEST_FIRST_SEED where they begin. The programs' main is in
// seeds.cpp.
#pragma once

#include <cstdint>
#include <functional>

namespace vmem::test {

inline constexpr std::uint64_t kShards = 8;  // tests, so that they can run beside each other

// Calls run(seed) for the shard's seeds until one fails the test, which the failure names.
void run_seeds(std::uint64_t shard, std::uint64_t usual_seeds, const std::function<void(std::uint64_t)>& run);

}  // namespace vmem::test
