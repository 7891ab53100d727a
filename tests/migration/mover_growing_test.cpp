// A tier below whose budget others grant: allocations wait for it, and are refused by name.
#include <gmock/gmock.h>

#include "migration/mover_harness.hpp"
#include "visits.hpp"

namespace vmem::migration {
namespace {

using ::testing::HasSubstr;

// Grants in steps, when the test says so or at once.
class GrowingSpill final : public tiers::Tier, public tiers::GrowingTier, public tiers::QueueingTier {
 public:
  std::uint64_t there = 0;       // bytes that could be granted in all
  std::uint64_t granted = 0;     // the budget
  std::uint64_t needed = 0;      // the most since the last answer
  std::uint64_t last = 0;        // as told last
  std::uint64_t least_step = 0;  // of growth: what is left out is granted on the next ask
  bool at_once = true;           // each need is answered at once
  std::uint64_t asked = 0;       // tickets
  std::uint64_t answered = 0;

  void answer() {
    const std::uint64_t wanted = std::min(there, needed);
    if (wanted > granted) granted = least_step == 0 ? wanted : std::min(wanted, granted + least_step);
    if (granted != before_) ++changes_;
    before_ = granted;
    answered = asked;
  }
  std::uint64_t need(std::uint64_t bytes) override {
    last = bytes;
    needed = asked == answered ? bytes : std::max(needed, bytes);
    ++asked;
    if (at_once) answer();
    return asked;
  }
  bool was_answered(std::uint64_t ticket) const override { return answered >= ticket; }
  std::uint64_t changes() const override { return changes_; }
  std::vector<std::uint64_t> obtainable_places() const override { return {there}; }
  std::string shortage() const override { return "the others have it"; }

  const tiers::TierInfo& info() const noexcept override { return inner_.info(); }
  tiers::TierUsage usage() const override {
    tiers::TierUsage usage = inner_.usage();
    usage.budget_bytes = granted;
    return usage;
  }
  void expect(std::uint64_t, std::uint64_t) override {}
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes) override {
    if (inner_.usage().used_bytes + page_bytes > granted) return tiers::SlotGrant{};
    return inner_.allocate(page_bytes);
  }
  void release(tiers::SlotId slot) override { inner_.release(slot); }
  std::uint32_t queue(tiers::SlotId slot) const override { return inner_.queue(slot); }
  void hurry(std::uint64_t transfer) override { inner_.hurry(transfer); }
  Status submit(std::span<tiers::Transfer> transfers) override { return inner_.submit(transfers); }
  Status poll(std::vector<tiers::Completion>& completions) override { return inner_.poll(completions); }
  tiers::Finished finish() noexcept override { return inner_.finish(); }

 private:
  ScriptedSpill inner_{1u << 30};
  std::uint64_t changes_ = 0, before_ = 0;
};

class MoverGrowing : public MoverTest {
 protected:
  void begin(std::uint32_t pages_there) {
    spill_below.there = pages_there * kPageBytes;
    below_host = &spill_below;
    start({.hbm_pages = 8, .host_pages = 8});
  }
  // An allocation that nobody has granted room for yet.
  void begin_to_wait(AllocateRequest& request) {
    begin(64);
    spill_below.at_once = false;
    request.bytes = 24 * kPageBytes;
    mover->post(request);
    steps();
  }
  ~MoverGrowing() override {
    if (mover) finish();
  }
  GrowingSpill spill_below;
};

TEST_F(MoverGrowing, WhatFitsIntoTheOwnMemoryNeedsNothing) {
  begin(64);
  Region& region = allocate(6);
  steps();
  EXPECT_EQ(spill_below.needed, 0u);
  EXPECT_EQ(spill_below.granted, 0u);
  (void)region;
}

TEST_F(MoverGrowing, AnAllocationWaitsUntilItsRoomIsGranted) {
  AllocateRequest request;
  begin_to_wait(request);
  EXPECT_FALSE(request.done());
  EXPECT_GE(spill_below.needed, 10 * kPageBytes);
  EXPECT_LE(spill_below.needed, 20 * kPageBytes);
  spill_below.answer();
  ASSERT_TRUE(step_until([&] { return request.done(); }));
  EXPECT_TRUE(request.result()) << request.result().error().message;
}

// One of two lenders has answered.
TEST_F(MoverGrowing, ACallIsNeededForAsLongAsItWaits) {
  AllocateRequest request;
  begin_to_wait(request);
  const std::uint64_t needed = spill_below.last;
  EXPECT_GE(needed, 10 * kPageBytes);
  spill_below.granted += 2 * kPageBytes;
  allocate(2);
  steps();
  EXPECT_FALSE(request.done());
  EXPECT_GE(spill_below.last, needed);
  spill_below.there = spill_below.granted;
  ASSERT_TRUE(step_until([&] {
    spill_below.answer();
    return request.done();
  }));
  EXPECT_FALSE(request.result());
  steps();
  EXPECT_EQ(spill_below.last, 0u) << "nobody needs it any more";
}

TEST_F(MoverGrowing, WhatNobodyGrantsIsRefusedWithWhoHasItAndNothingElseIsDisturbed) {
  begin(4);
  Region& other = allocate(12);
  const auto refused = try_allocate(40);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_THAT(refused.error().message, HasSubstr("the others have it"));
  EXPECT_TRUE(try_allocate(1));
  write_to_the_end(actor(), writing(other, 0), 3);
}

// Each answer gives something, so that the call asks again.
TEST_F(MoverGrowing, AGrantThatIsTooSmallIsAskedForAgain) {
  begin(64);
  spill_below.least_step = 2 * kPageBytes;
  EXPECT_TRUE(try_allocate(30));
  EXPECT_GE(spill_below.granted, 16 * kPageBytes);
  EXPECT_FALSE(try_allocate(100));
}

TEST_F(MoverGrowing, CapacityIsWhatCouldBeGranted) {
  begin(64);
  CapacityRequest capacity;
  ASSERT_TRUE(ask(capacity));
  EXPECT_GE(capacity.free_bytes, 70 * kPageBytes);
  EXPECT_EQ(spill_below.granted, 0u);
  EXPECT_TRUE(try_allocate(std::uint32_t(capacity.free_bytes / kPageBytes)));
}

TEST_F(MoverGrowing, LessIsNeededOnceMemoryIsFreed) {
  begin(64);
  Region& large = allocate(30);
  allocate(12);
  steps();
  const std::uint64_t before = spill_below.needed;
  EXPECT_GE(before, 30 * kPageBytes);
  ASSERT_TRUE(free(large));
  steps();
  EXPECT_LE(spill_below.needed, before - 28 * kPageBytes);
}

// HBM counts for what allocations need, and pages that only the CPU uses leave it empty.
TEST_F(MoverGrowing, WhatHbmDoesNotTakeGetsRoomBeyondTheNeed) {
  begin(64);
  Region& region = allocate(26);
  steps();
  EXPECT_LE(spill_below.granted, 22 * kPageBytes);
  for (std::uint32_t i = 0; i < 26; ++i) ASSERT_TRUE(cpu_write(region, i, static_cast<unsigned char>(i)));
  settle();
  EXPECT_EQ(inside->counters().spill_failures, 0u);
  EXPECT_LE(spill_below.granted, 40 * kPageBytes);
}

// The budget is what was needed, and no more.
TEST_F(MoverGrowing, EveryPageServesInEveryOrder) {
  begin(64);
  Actor& thread = actor();
  constexpr std::uint32_t kPages = 26;
  Region& region = allocate(kPages);
  steps();
  spill_below.granted = spill_below.there = spill_below.needed;
  std::vector<unsigned char> bytes(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) {
    bytes[i] = static_cast<unsigned char>(i + 1);
    ASSERT_TRUE(cpu_write(region, i, bytes[i]));
  }
  for (const test::Order order : test::kOrders) {
    for (const std::uint32_t i : test::visits<std::uint32_t>(order, kPages)) {
      expect_bytes(thread, region, i, bytes[i]);
      if (HasFatalFailure()) return;
      write_to_the_end(thread, writing(region, i), ++bytes[i]);
    }
  }
}

}  // namespace
}  // namespace vmem::migration
