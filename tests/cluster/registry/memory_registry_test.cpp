#include "cluster/registry/memory_registry.hpp"

#include "cluster/registry/registry_conformance.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

struct MemoryWorld {
  Registry& client(int i) { return i == 0 ? a : b; }
  void pass() { clock.advance(kSecondUs / 10); }

  ManualClock clock;
  RegistryState state{clock};
  MemoryRegistry a{state}, b{state};
};

TEST(RegistryState, ALeaseEndsOnTheMicrosecond) {
  ManualClock clock;
  RegistryState state(clock);
  const Reply granted = state.apply(RequestId{1}, GrantLease{90});
  const LeaseId lease = std::get<Granted>(granted.what).lease;
  (void)state.apply(RequestId{2}, Commit{.conditions = {}, .edits = {put("a", "", lease)}});
  const Revision before = state.revision();
  clock.advance(50 * kSecondUs);
  EXPECT_EQ(std::get<Renewed>(state.apply(RequestId{3}, RenewLease{lease}).what).seconds, 90u);
  clock.advance(90 * kSecondUs - 1);
  state.expire();
  EXPECT_EQ(state.revision(), before);
  clock.advance(1);
  state.expire();
  EXPECT_GT(state.revision(), before);
  EXPECT_TRUE(std::get<Read>(state.apply(RequestId{4}, ReadPrefix{""}).what).records.empty());
}

TEST(RegistryState, ACopyGoesItsOwnWay) {
  ManualClock clock;
  RegistryState state(clock);
  RegistryState copy = state;
  (void)copy.apply(RequestId{1}, Commit{.conditions = {}, .edits = {put("a", "")}});
  EXPECT_TRUE(std::get<Read>(state.apply(RequestId{1}, ReadPrefix{""}).what).records.empty());
}

}  // namespace

INSTANTIATE_TYPED_TEST_SUITE_P(Memory, RegistryConformance, MemoryWorld);

}  // namespace vmem::cluster
