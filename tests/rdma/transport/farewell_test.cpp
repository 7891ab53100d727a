// Exchanges between a remote tier and its lenders after the tier has left.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "rdma/lending/remote_fixture.hpp"

namespace vmem::rdma {
namespace {

using tiers::Outcome;

// The farewell ends the lease and its pages, so no lender answers for a page released later.
TEST(Farewell, APageReleasedAfterTheFarewellIsNotWaitedFor) {
  SteppedRemote remote(1);
  remote.start_tier();
  const auto slot = remote.slot();
  ASSERT_EQ(remote.store(slot, 0, 1).outcome, Outcome::done);
  remote.tier->leave();
  remote.pass(1'000'000);
  ASSERT_EQ(remote.connected(), 0u) << "the lease has ended";
  remote.tier->release(slot);
  remote.pass(2 * SteppedRemote::kRequestUs);
  EXPECT_NE(remote.tier->usage().ready_bytes, 0u) << "the connection was not ended for want of an answer";
}

TEST(Farewell, AFarewellToANodeThatIsGoneIsNotWaitedFor) {
  SteppedRemote remote(1);
  remote.start_tier();
  remote.tier->leave();  // nobody steps: leave() waits as for an answer
  remote.lenders[0]->faults->set_faults({.drop = 1});
  remote.turn();
  remote.lenders[0].reset();
  remote.pass(1'000'000);
  auto shortest = std::chrono::steady_clock::duration::max();
  for (int i = 0; i < 5; ++i) {
    const auto began = std::chrono::steady_clock::now();
    remote.tier->leave();
    shortest = std::min(shortest, std::chrono::steady_clock::now() - began);
  }
  EXPECT_LT(shortest, std::chrono::milliseconds(300)) << "the time that it waits for an answer";
}

}  // namespace
}  // namespace vmem::rdma
