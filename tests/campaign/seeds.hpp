// Random tests that run by seed: the seeds of a shard, and repetition of one (--seed=N or
// VMEM_TEST_SEED=N). VMEM_TEST_SEEDS sets the number of seeds in all, VMEM_TEST_FIRST_SEED the
// first. seeds.cpp has the main of those programs. Tests of other programs that make random choices
// take one seed from VMEM_TEST_SEED: printed_seed().
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>

namespace vmem::test {

inline constexpr std::uint64_t kShards = 8;  // tests that can run in parallel

// Calls run(seed) for the shard's seeds until one fails the test; the failure names the seed.
// `number`: a variable that sets the number of this test's seeds, before VMEM_TEST_SEEDS.
void run_seeds(std::uint64_t shard, std::uint64_t usual_seeds, const std::function<void(std::uint64_t)>& run,
               const char* number = "VMEM_TEST_SEEDS");

// VMEM_TEST_SEED, or a new seed if unset. Inline, so that callers need not link seeds.cpp and its
// main.
inline std::uint64_t printed_seed() {
  const char* const given = std::getenv("VMEM_TEST_SEED");
  const std::uint64_t seed = given == nullptr ? std::random_device{}() : std::strtoull(given, nullptr, 0);
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  return seed;
}

}  // namespace vmem::test
