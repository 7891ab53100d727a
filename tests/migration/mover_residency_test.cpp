// A page's way into HBM and back: mappings, copies, and the last bytes written.
#include <cstring>
#include <functional>
#include <vector>

#include "migration/mover_harness.hpp"

namespace vmem::migration {
namespace {

using tiers::Direction;

class Residency : public MoverTest {};

TEST_F(Residency, AnUnbackedPageIsMappedIntoHbmWithoutACopy) {
  start();
  Region& region = allocate(2);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  check();
  EXPECT_TRUE(in_hbm(region, 0));
  EXPECT_EQ(state(region, 0).word(), std::uint32_t(Access::write));
  EXPECT_EQ(page(region, 1).mapped, Mapped::nothing);
  EXPECT_EQ(tier->submitted(Direction::load), 0u);
  release(a, writing(region, 0));
}

TEST_F(Residency, UnderProtectionAPageAcquiredForReadingIsMappedReadOnly) {
  start({.protect = true});
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  check();  // compares with the driver
  EXPECT_TRUE(state(region, 0).allows(Access::read));
  EXPECT_FALSE(state(region, 0).allows(Access::write));
  release(a, reading(region, 0));
}

TEST_F(Residency, AResidentPageIsAHit) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write(a, writing(region, 0), 1);
  const auto again = begin(a, reading(region, 0));
  EXPECT_TRUE(again->hit);
  ASSERT_TRUE(complete(*again));
  release(a, reading(region, 0));
}

TEST_F(Residency, ADirtyPageIsStoredAndComesBackWithItsBytes) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 0x5a);
  evict_to_the_end(reading(region, 0));
  check();
  EXPECT_EQ(page(region, 0).mapped, Mapped::nothing);
  EXPECT_EQ(tier->submitted(Direction::store), 1u);
  expect_stored(region, 0, 0x5a);
  // Reuses the frame, so that the page must be loaded.
  Region& other = allocate(4);
  write(a, writing(other, 0, 4), 1);
  finish_work(a);
  expect_bytes(a, region, 0, 0x5a);
  EXPECT_EQ(tier->submitted(Direction::load), 1u);
}

TEST_F(Residency, APageNotWrittenSinceItsCopyIsDroppedWithoutAStore) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 7));
  expect_bytes(a, region, 0, 7);
  steps();
  evict_to_the_end(reading(region, 0));
  EXPECT_EQ(page(region, 0).mapped, Mapped::nothing);
  EXPECT_EQ(tier->submitted(Direction::store), 0u);
  EXPECT_EQ(tier->checks(), 1u);
  EXPECT_EQ(inside->counters().dropped_bytes, kPageBytes);
  EXPECT_EQ(inside->counters().stray_writes, 0u);
  expect_bytes(a, region, 0, 7);
}

// A write by a declared reader breaks the contract, but must not be lost silently.
TEST_F(Residency, AWriteByAReaderIsFoundWhenThePageLeavesAndKept) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 7));
  for (int round = 1; round <= 3; ++round) {
    ASSERT_TRUE(acquire(a, reading(region, 0)));
    fill(a, reading(region, 0), std::uint8_t(7 + round));
    release(a, reading(region, 0));
    finish_work(a);
    steps();
    evict_to_the_end(reading(region, 0));
    EXPECT_EQ(inside->counters().stray_writes, std::uint64_t(round));
    EXPECT_EQ(inside->counters().migrated_out_bytes, std::uint64_t(round) * kPageBytes);
    expect_stored(region, 0, std::uint8_t(7 + round));
  }
}

// Programs that declare nothing, and write a little of each page that they use. The page always
// comes in by a copy: the only frame was another page's.
TEST_F(Residency, OfAPageThatIsWrittenInPartOnlyThePartLeaves) {
  constexpr std::uint64_t kPiece = std::uint64_t{64} << 10;
  start({.hbm_pages = 1, .undeclared = true});
  Region &region = allocate(1), &other = allocate(1);
  Actor& a = actor();
  const auto use = [&](Region& of, const std::function<void()>& work) {
    ASSERT_TRUE(acquire(a, reading(of, 0)));
    enqueue(*driver, a.stream, work);
    release(a, reading(of, 0));
    finish_work(a);
    steps();
  };
  auto* const at = reinterpret_cast<unsigned char*>(space->address_of(region.granule_of(0)));
  use(region, [&] { std::memset(at, 7, kPageBytes); });
  use(other, [] {});
  for (int round = 1; round <= 5; ++round) {
    use(region, [&] { at[round * kPiece] = 99; });
    const vmem_statistics before = inside->counters();
    evict_to_the_end(reading(region, 0));
    EXPECT_EQ(inside->counters().migrated_out_bytes - before.migrated_out_bytes, kPiece) << "round " << round;
    EXPECT_EQ(inside->counters().dropped_bytes - before.dropped_bytes, kPageBytes - kPiece) << "round " << round;
    use(other, [] {});
  }
  // What changed in a quarter or more counts as written the next time, and leaves as a whole.
  use(region, [&] { std::memset(at, 7, kPageBytes); });
  std::uint64_t out = inside->counters().migrated_out_bytes;
  evict_to_the_end(reading(region, 0));
  EXPECT_EQ(inside->counters().migrated_out_bytes - out, 5 * kPiece) << "the five that had changed";
  use(other, [] {});
  use(region, [&] { std::memset(at, 8, kPageBytes / 4); });
  use(other, [] {});
  use(region, [&] { at[0] = 99; });
  out = inside->counters().migrated_out_bytes;
  evict_to_the_end(reading(region, 0));
  EXPECT_EQ(inside->counters().migrated_out_bytes - out, kPageBytes);
  use(other, [] {});
  std::vector<unsigned char> bytes(kPageBytes);
  use(region, [&] { std::memcpy(bytes.data(), at, kPageBytes); });
  for (std::uint64_t i = 0; i < kPageBytes; ++i) ASSERT_EQ(bytes[i], i == 0 ? 99 : i < kPageBytes / 4 ? 8 : 7) << i;
}

TEST_F(Residency, AWriteByAReaderToAPageThatWasNeverWrittenIsKept) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  fill(a, reading(region, 0), 3);
  release(a, reading(region, 0));
  finish_work(a);
  steps();
  evict_to_the_end(reading(region, 0));
  expect_stored(region, 0, 3);
}

TEST_F(Residency, AProtectedPageNeedsNoCheck) {
  start({.protect = true});
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 7));
  expect_bytes(a, region, 0, 7);
  steps();
  evict_to_the_end(reading(region, 0));
  EXPECT_EQ(tier->checks(), 0u);
  EXPECT_EQ(tier->submitted(Direction::store), 0u);
  expect_bytes(a, region, 0, 7);
}

TEST_F(Residency, WorkWaitsForTheBytesOfALoadInFlight) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 9));
  tier->hold_back(Direction::load);
  ASSERT_TRUE(acquire(a, reading(region, 0)));  // does not wait for the load
  check();
  EXPECT_TRUE(state(region, 0).has(PageState::kPending));
  const std::byte* const at = reinterpret_cast<std::byte*>(space->address_of(region.granule_of(0)));
  std::byte seen{};
  enqueue(*driver, a.stream, [&] { seen = *at; });
  steps();
  EXPECT_EQ((*driver)->cuStreamQuery(a.stream), CUDA_ERROR_NOT_READY);
  tier->let_go(Direction::load);
  finish_work(a);
  EXPECT_EQ(seen, std::byte{9});
  release(a, reading(region, 0));
  settle();
  EXPECT_FALSE(state(region, 0).has(PageState::kPending));
}

TEST_F(Residency, ASecondAcquirerOfALoadInFlightWaitsForItToo) {
  start();
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(cpu_write(region, 0, 9));
  tier->hold_back(Direction::load);
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  const auto second = begin(b, reading(region, 0));
  EXPECT_TRUE(second->hit) << "the mover need not be asked";
  ASSERT_TRUE(complete(*second));
  enqueue(*driver, b.stream, [] {});
  EXPECT_EQ((*driver)->cuStreamQuery(b.stream), CUDA_ERROR_NOT_READY);
  tier->let_go(Direction::load);
  finish_work(b);
  release(a, reading(region, 0));
  release(b, reading(region, 0));
}

TEST_F(Residency, AWriteAcquireOfAReadOnlyPageUpgradesItInPlace) {
  start();
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(cpu_write(region, 0, 3));
  expect_bytes(a, region, 0, 3);
  const std::uint32_t frame = page(region, 0).frame;
  ASSERT_TRUE(acquire(b, reading(region, 0)));  // a reader does not block the upgrade
  write(a, writing(region, 0), 4);
  check();
  EXPECT_EQ(page(region, 0).frame, frame);
  EXPECT_TRUE(state(region, 0).allows(Access::write));
  release(b, reading(region, 0));
  finish_work(a);
  finish_work(b);
  evict_to_the_end(reading(region, 0));
  expect_stored(region, 0, 4);
}

TEST_F(Residency, UnderProtectionAnUpgradeWaitsForTheReadersAndTheirWork) {
  start({.protect = true});
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(cpu_write(region, 0, 3));
  expect_bytes(a, region, 0, 3);
  ASSERT_TRUE(acquire(b, reading(region, 0)));
  const auto waiting = begin(a, writing(region, 0));
  steps();
  EXPECT_FALSE(waiting->done()) << "held";
  Gate kernel = gate(b);
  release(b, reading(region, 0));
  steps();
  EXPECT_FALSE(waiting->done()) << "its work is unfinished";
  check();
  kernel.open();
  ASSERT_TRUE(complete(*waiting));
  check();
  EXPECT_TRUE(state(region, 0).allows(Access::write));
  fill(a, writing(region, 0), 4);
  release(a, writing(region, 0));
  expect_bytes(a, region, 0, 4);
}

TEST_F(Residency, UnderProtectionAnUpgradeOfAPageThatStaysInUseIsRefused) {
  start({.protect = true});
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(acquire(b, reading(region, 0)));
  const auto waiting = begin(a, writing(region, 0));
  steps();
  now_us += acquire_wait_us;
  EXPECT_EQ(complete(*waiting).error().status, VMEM_ERROR_IN_USE);
  check();
  release(b, reading(region, 0));
  finish_work(b);
  ASSERT_TRUE(acquire(a, writing(region, 0)));
  release(a, writing(region, 0));
}

TEST_F(Residency, UnderProtectionAnUpgradeWhoseRemapFailsLeavesThePageReadable) {
  start({.protect = true});
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  release(a, reading(region, 0));
  finish_work(a);
  faults->fail_nth("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN);
  EXPECT_FALSE(acquire(a, writing(region, 0)));
  check();
  EXPECT_TRUE(state(region, 0).allows(Access::read));
  write(a, writing(region, 0), 1);
  check();
}

TEST_F(Residency, AnUpgradeDuringALoadKeepsTheLoadsBytes) {
  start();
  Region& region = allocate(1);
  Actor &a = actor(), &b = actor();
  ASSERT_TRUE(cpu_write(region, 0, 3));
  tier->hold_back(Direction::load);
  ASSERT_TRUE(acquire(a, reading(region, 0)));
  ASSERT_TRUE(acquire(b, writing(region, 0)));
  check();
  EXPECT_TRUE(state(region, 0).has(PageState::kPending));
  tier->let_go(Direction::load);
  finish_work(b);
  release(a, reading(region, 0));
  release(b, writing(region, 0));
  expect_bytes(a, region, 0, 3);
}

TEST_F(Residency, DiscardedContentsAreNotFetched) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 0, 3));
  write(a, discarding(region, 0), 8);
  EXPECT_EQ(tier->submitted(Direction::load), 0u);
  finish_work(a);
  expect_bytes(a, region, 0, 8);
  steps();
  evict_to_the_end(reading(region, 0));
  expect_stored(region, 0, 8);
}

TEST_F(Residency, EveryPageOfARangeIsServed) {
  start();
  Region& region = allocate(3);
  Actor& a = actor();
  for (std::uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(cpu_write(region, i, std::uint8_t(10 + i)));
  ASSERT_TRUE(acquire(a, reading(region, 0, 3)));
  release(a, reading(region, 0, 3));
  for (std::uint32_t i = 0; i < 3; ++i) expect_bytes(a, region, i, std::uint8_t(10 + i));
  EXPECT_EQ(region.unreadable.load(), 0u);
}

TEST_F(Residency, MemoryLargerThanHbmKeepsItsBytesThroughManyPasses) {
  for (const bool real_policy : {false, true}) {
    start({.real_policy = real_policy});
    Region& region = allocate(12);
    Actor& a = actor();
    for (int pass = 0; pass < 3; ++pass) {
      for (std::uint32_t i = 0; i < 12; ++i) {
        if (pass > 0) expect_bytes(a, region, i, std::uint8_t(20 * (pass - 1) + int(i)));
        write(a, writing(region, i), std::uint8_t(20 * pass + int(i)));
        finish_work(a);
        check();
      }
    }
    finish();
  }
}

// ---- standby: an evicted page's bytes stay in its frame until that is reused ----

TEST_F(Residency, AStandbyPageIsTakenBackWithoutACopy) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  evict_to_the_end(reading(region, 0));
  EXPECT_TRUE(page(region, 0).standby());
  expect_bytes(a, region, 0, 6);
  check();
  EXPECT_TRUE(in_hbm(region, 0));
  EXPECT_EQ(tier->submitted(Direction::load), 0u);
  EXPECT_EQ(inside->counters().eviction_cancels, 1u);
}

TEST_F(Residency, WritesToAPageTakenBackDuringItsStoreWaitForTheStoreAndAreStoredAnew) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  tier->hold_back(Direction::store);
  evict(reading(region, 0));
  write(a, writing(region, 0), 7);
  check();
  EXPECT_TRUE(state(region, 0).has(PageState::kPending));
  EXPECT_EQ((*driver)->cuStreamQuery(a.stream), CUDA_ERROR_NOT_READY);
  tier->let_go(Direction::store);
  finish_work(a);
  settle();
  EXPECT_FALSE(state(region, 0).has(PageState::kPending));
  evict_to_the_end(reading(region, 0));
  EXPECT_EQ(tier->submitted(Direction::store), 2u);
  expect_stored(region, 0, 7);
}

TEST_F(Residency, APageTakenBackForReadingDuringItsStoreIsReadableAtOnceAndItsFirstWriteWaits) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  tier->hold_back(Direction::store);
  evict(reading(region, 0));
  expect_bytes(a, region, 0, 6);  // reads to the end without waiting for the store
  EXPECT_FALSE(state(region, 0).has(PageState::kPending));
  write(a, writing(region, 0), 7);
  check();
  EXPECT_EQ((*driver)->cuStreamQuery(a.stream), CUDA_ERROR_NOT_READY);
  tier->let_go(Direction::store);
  finish_work(a);
  settle();
  evict_to_the_end(reading(region, 0));
  expect_stored(region, 0, 7);
}

TEST_F(Residency, AFrameReusedByAnotherPageIsNotTakenBack) {
  start({.hbm_pages = 1});
  Region& region = allocate(2);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  evict(reading(region, 0));
  write(a, writing(region, 1), 1);  // reuses the only frame
  finish_work(a);
  EXPECT_FALSE(page(region, 0).standby());
  EXPECT_EQ(page(region, 0).frame, kNoFrame);
  expect_bytes(a, region, 0, 6);
  EXPECT_EQ(tier->submitted(Direction::load), 1u);
}

TEST_F(Residency, AFrameReusedWhileItsStoreRunsIsWrittenOnlyAfterTheStore) {
  start({.hbm_pages = 1});
  Region& region = allocate(2);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  tier->hold_back(Direction::store);
  evict(reading(region, 0));
  ASSERT_TRUE(acquire(a, writing(region, 1)));  // mapped already, usable after the store
  fill(a, writing(region, 1), 1);
  release(a, writing(region, 1));
  EXPECT_TRUE(state(region, 1).has(PageState::kPending));
  tier->let_go(Direction::store);
  finish_work(a);
  settle();
  expect_stored(region, 0, 6);
  expect_bytes(a, region, 0, 6);
  expect_bytes(a, region, 1, 1);
}

TEST_F(Residency, APageFetchedAgainWhileItsStoreRunsIsLoadedAfterTheStore) {
  start({.hbm_pages = 2});
  Region& region = allocate(3);
  Actor& a = actor();
  ASSERT_TRUE(cpu_write(region, 1, 1));
  write(a, writing(region, 0), 6);
  expect_bytes(a, region, 1, 1);  // clean: its frame needs no store
  finish_work(a);
  settle();
  tier->hold_back(Direction::store);
  evict(reading(region, 0));
  ASSERT_TRUE(acquire(a, writing(region, 2)));  // reuses page 0's frame
  ASSERT_TRUE(acquire(a, reading(region, 0)));  // reuses page 1's frame
  EXPECT_EQ(tier->submitted(Direction::load), 2u);
  steps();
  EXPECT_TRUE(state(region, 0).has(PageState::kPending)) << "its bytes are not in the slot yet";
  tier->let_go(Direction::store);
  release(a, writing(region, 2));
  release(a, reading(region, 0));
  expect_bytes(a, region, 0, 6);
}

TEST_F(Residency, AStandbyFrameOfAPageWrittenInPlaceIsNotTakenBack) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  ASSERT_TRUE(advise(reading(region, 0), VMEM_ADVISE_IN_PLACE));
  settle();
  EXPECT_TRUE(page(region, 0).standby());
  write(a, writing(region, 0), 7);
  EXPECT_TRUE(in_place(region, 0));
  EXPECT_FALSE(page(region, 0).standby());
  finish_work(a);
  ASSERT_TRUE(advise(reading(region, 0), VMEM_ADVISE_NORMAL));
  steps();
  expect_bytes(a, region, 0, 7);
}

TEST_F(Residency, AStandbyFrameOfAPageWrittenByTheCpuIsNotTakenBack) {
  start();
  Region& region = allocate(1);
  Actor& a = actor();
  write_to_the_end(a, writing(region, 0), 6);
  evict(reading(region, 0));
  ASSERT_TRUE(cpu_write(region, 0, 7));
  check();
  expect_bytes(a, region, 0, 7);
}

}  // namespace
}  // namespace vmem::migration
