#include "campaign/seeds.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace vmem::test {
namespace {

std::uint64_t environment_number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 0);
}

void run_seed(std::uint64_t seed, const std::function<void(std::uint64_t)>& run) {
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  run(seed);
  ASSERT_FALSE(::testing::Test::HasFailure()) << "run again with --seed=" << seed;
}

}  // namespace

void run_seeds(std::uint64_t shard, std::uint64_t usual_seeds, const std::function<void(std::uint64_t)>& run,
               const char* number) {
  if (const std::uint64_t only = environment_number("VMEM_TEST_SEED", 0); only != 0) {
    if (shard != 0) GTEST_SKIP() << "one seed, run by the first shard";
    return run_seed(only, run);
  }
  const std::uint64_t seeds = environment_number(number, environment_number("VMEM_TEST_SEEDS", usual_seeds));
  const std::uint64_t first = environment_number("VMEM_TEST_FIRST_SEED", 1);
  for (std::uint64_t seed = first + shard; seed < first + seeds; seed += kShards) {
    run_seed(seed, run);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace vmem::test

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  constexpr std::string_view kSeed = "--seed=";
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    if (argument.starts_with(kSeed)) ::setenv("VMEM_TEST_SEED", arguments[i] + kSeed.size(), 1);
  }
  return RUN_ALL_TESTS();
}
