// Mismatched acquire and release, calls refused while ranges are held, and invalid arguments.
#include <thread>

#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

class BadHold : public RuntimeTest {};

TEST_F(BadHold, ReleaseWithoutAcquireIsRefused) {
  void* memory = allocate(4 * kMiB);
  EXPECT_REFUSED(release(range_of(memory, 4 * kMiB)), VMEM_ERROR_NOT_ACQUIRED, {"4194304 bytes", hex(memory)});
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadHold, ReleaseTwiceIsRefused) {
  void* memory = allocate(4 * kMiB);
  const vmem_range range = range_of(memory, 4 * kMiB);
  ASSERT_OK(acquire(range));
  EXPECT_OK(release(range));
  EXPECT_REFUSED(release(range), VMEM_ERROR_NOT_ACQUIRED, {hex(memory)});
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadHold, HoldsAreCounted) {
  void* memory = allocate(4 * kMiB);
  const vmem_range range = range_of(memory, 4 * kMiB);
  ASSERT_OK(acquire(range));
  ASSERT_OK(acquire(range));
  const vmem_range thrice[] = {range, range, range};
  EXPECT_REFUSED(vmem_release(thrice, 3, nullptr), VMEM_ERROR_NOT_ACQUIRED, {hex(memory)});
  EXPECT_OK(vmem_release(thrice, 2, nullptr));
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadHold, ReleaseByAnotherThreadIsRefused) {
  void* memory = allocate(4 * kMiB);
  const vmem_range range = range_of(memory, 4 * kMiB);
  ASSERT_OK(acquire(range));
  std::thread([&] { EXPECT_REFUSED(release(range), VMEM_ERROR_NOT_ACQUIRED, {"thread", hex(memory)}); }).join();
  EXPECT_OK(release(range));
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadHold, ReleaseWithOtherBytesOrAnotherBeginIsRefusedAndNothingReleased) {
  auto* memory = static_cast<std::byte*>(allocate(4 * kMiB));
  const vmem_range range = range_of(memory, 1000);
  ASSERT_OK(acquire(range));
  EXPECT_REFUSED(release(range_of(memory, 999)), VMEM_ERROR_NOT_ACQUIRED, {"999 bytes"});
  EXPECT_REFUSED(release(range_of(memory, 1001)), VMEM_ERROR_NOT_ACQUIRED, {"1001 bytes"});
  EXPECT_REFUSED(release(range_of(memory + 1, 999)), VMEM_ERROR_NOT_ACQUIRED, {hex(memory + 1)});
  const vmem_range both[] = {range, range_of(memory, 999)};
  EXPECT_REFUSED(vmem_release(both, 2, nullptr), VMEM_ERROR_NOT_ACQUIRED);
  EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_IN_USE, {hex(memory), "release"});
  EXPECT_OK(release(range_of(memory, 1000, VMEM_READ))) << "access is ignored";
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadHold, AnAcquireThatFailsHoldsNothing) {
  void* live = allocate(4 * kMiB);
  void* dead = allocate(4 * kMiB);
  ASSERT_OK(vmem_free(dead, nullptr));
  const vmem_range ranges[] = {range_of(live, 4 * kMiB), range_of(dead, 4 * kMiB), range_of(live, 10)};
  EXPECT_REFUSED(vmem_acquire(ranges, 3, nullptr), VMEM_ERROR_INVALID_POINTER, {hex(dead), "freed"});
  EXPECT_REFUSED(release(ranges[0]), VMEM_ERROR_NOT_ACQUIRED);
  EXPECT_OK(vmem_free(live, nullptr));
  expect_nothing_left();
}

TEST_F(BadHold, FreeIsRefusedWhileAnyThreadHoldsTheAllocation) {
  auto* memory = static_cast<std::byte*>(allocate(8 * kMiB));
  const vmem_range inside = range_of(memory + 5 * kMiB, 10, VMEM_READ);
  ASSERT_OK(acquire(inside));
  EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_IN_USE, {hex(memory), "release"});
  std::thread([&] { EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_IN_USE, {hex(memory), "release"}); }).join();
  EXPECT_OK(vmem_memset(memory, 1, 100, nullptr)) << "a refused free leaves the allocation as it was";
  EXPECT_OK(release(inside));
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadHold, FreeOfASmallAllocationIsRefusedWhileItsThreadHoldsAnyPartOfIt) {
  auto* memory = static_cast<std::byte*>(allocate(3000));
  for (const std::size_t offset : {0, 100, 2999}) {
    const vmem_range part = range_of(memory + offset, 1);
    ASSERT_OK(acquire(part));
    EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_IN_USE, {hex(memory), "release"}) << offset;
    EXPECT_OK(release(part));
  }
  // A hold on a neighbour in the same page does not matter.
  void* neighbour = allocate(3000);
  ASSERT_OK(acquire(range_of(neighbour, 3000)));
  EXPECT_OK(vmem_free(memory, nullptr));
  EXPECT_OK(release(range_of(neighbour, 3000)));
  EXPECT_OK(vmem_free(neighbour, nullptr));
}

TEST_F(BadHold, WriteToAHeldPageIsRefused) {
  void* memory = allocate(4 * kMiB);
  const vmem_range range = range_of(memory, 10, VMEM_READ);
  ASSERT_OK(acquire(range));
  const std::byte byte{1};
  EXPECT_REFUSED(vmem_write(memory, &byte, 1), VMEM_ERROR_IN_USE, {hex(memory), "release"});
  EXPECT_OK(release(range));
  EXPECT_OK(vmem_write(memory, &byte, 1));
  EXPECT_OK(vmem_free(memory, nullptr));
}

class ProtectedHold : public RuntimeTest {
 protected:
  ProtectedHold() : RuntimeTest({{"protect", "on"}, {"acquire_wait", "1ms"}}) {}
  void TearDown() override {
    for (std::byte* each : small_) EXPECT_OK(vmem_free(each, nullptr));
    RuntimeTest::TearDown();
  }
  // Exceeds the quarter of HBM that small allocations may pin. Returns an evicted one.
  std::byte* fill_small() {
    for (int i = 0; i < 24; ++i) {
      small_.push_back(static_cast<std::byte*>(allocate(kMiB)));
      EXPECT_OK(vmem_memset(small_.back(), 7, kMiB, nullptr));
    }
    evict(small_.back());
    // Gives its frame to another page, so that it must be copied back.
    void* others = allocate(64 * kMiB);
    EXPECT_OK(vmem_memset(others, 1, 64 * kMiB, nullptr));
    EXPECT_OK(vmem_quiesce());
    EXPECT_OK(vmem_free(others, nullptr));
    EXPECT_OK(vmem_quiesce());
    return small_.back();
  }
  // The mover ignores the advice while the page may be in use, or lacks host memory.
  static void evict(std::byte* memory) {
    vmem_pointer_info info{};
    for (int tries = 0; tries < 100'000; ++tries) {
      ASSERT_OK(vmem_advise(memory, 1, VMEM_ADVISE_EVICT));
      ASSERT_OK(vmem_query(memory, &info));
      if (info.bytes_hbm == 0) return;
    }
    FAIL() << "the page stays in HBM";
  }

 private:
  std::vector<std::byte*> small_;
};

TEST_F(ProtectedHold, ACopyWithinOnePageHoldsNothingAgainstItself) {
  auto* memory = static_cast<std::byte*>(allocate(2 * kMiB));
  ASSERT_OK(vmem_memset(memory, 7, 100, nullptr));
  ASSERT_OK(vmem_quiesce());
  ASSERT_OK(vmem_advise(memory, 100, VMEM_ADVISE_EVICT));
  EXPECT_OK(vmem_memcpy(memory + kMiB, memory, 100, nullptr));
  std::byte found{};
  EXPECT_OK(vmem_read(&found, memory + kMiB + 99, 1));
  EXPECT_EQ(found, std::byte{7});
  EXPECT_OK(vmem_free(memory, nullptr));
}

// Neither thread can know that they share a page, or wait for the other: two threads that read and
// then write would deadlock.
TEST_F(ProtectedHold, SmallAllocationsOfOnePageAreReadAndWrittenIndependently) {
  auto* one = static_cast<std::byte*>(allocate(3000));
  auto* other = static_cast<std::byte*>(allocate(3000));
  CUstream stream = gpu->create_stream(0);
  const vmem_range read_one = range_of(one, 3000, VMEM_READ), read_other = range_of(other, 3000, VMEM_READ);
  ASSERT_OK(acquire(read_one));
  std::thread([&] {
    gpu->make_current(0);
    ASSERT_OK(acquire(read_other, stream));
    EXPECT_OK(acquire(range_of(other, 3000), stream)) << "its page is held for reading by a stranger";
    EXPECT_OK(vmem_memset(other, 9, 3000, stream));
    EXPECT_OK(release(range_of(other, 3000), stream));
    EXPECT_OK(release(read_other, stream));
  }).join();
  EXPECT_OK(acquire(range_of(one, 3000)));
  EXPECT_OK(vmem_memset(one, 8, 3000, nullptr));
  EXPECT_OK(release(range_of(one, 3000)));
  EXPECT_OK(release(read_one));
  ASSERT_OK(vmem_quiesce());
  std::byte found{};
  EXPECT_OK(vmem_read(&found, one + 2999, 1));
  EXPECT_EQ(found, std::byte{8});
  EXPECT_OK(vmem_read(&found, other + 2999, 1));
  EXPECT_EQ(found, std::byte{9});
  EXPECT_OK(vmem_stream_close(stream));
  gpu->destroy_stream(stream);
  EXPECT_OK(vmem_free(one, nullptr));
  EXPECT_OK(vmem_free(other, nullptr));
}

TEST_F(ProtectedHold, AStrayWriteToASmallAllocationIsKeptAndCounted) {
  std::byte* memory = fill_small();
  const vmem_range range = range_of(memory, kMiB, VMEM_READ);
  ASSERT_OK(acquire(range));
  ASSERT_EQ(gpu->launch(nullptr, 0, [memory] { memory[1000] = std::byte{9}; }), CUDA_SUCCESS);
  ASSERT_OK(release(range));
  evict(memory);
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(statistics().stray_writes, 1u);
  std::byte found{};
  EXPECT_OK(vmem_read(&found, memory + 1000, 1));
  EXPECT_EQ(found, std::byte{9});
}

TEST_F(ProtectedHold, AnUnchangedSmallAllocationLeavesWithoutACopy) {
  std::byte* memory = fill_small();
  const std::uint64_t before = statistics().migrated_out_bytes;
  const vmem_range range = range_of(memory, kMiB, VMEM_READ);
  ASSERT_OK(acquire(range));
  ASSERT_OK(release(range));
  evict(memory);
  ASSERT_OK(vmem_quiesce());
  EXPECT_EQ(statistics().migrated_out_bytes, before);
  EXPECT_EQ(statistics().stray_writes, 0u);
}

TEST_F(BadHold, WriteToASmallAllocationIsRefusedOnlyWhileItIsHeldItself) {
  auto* memory = static_cast<std::byte*>(allocate(3000));
  auto* neighbour = static_cast<std::byte*>(allocate(3000));
  const std::byte byte{1};
  const vmem_range part = range_of(memory + 100, 1);
  ASSERT_OK(acquire(part));
  EXPECT_REFUSED(vmem_write(memory + 2000, &byte, 1), VMEM_ERROR_IN_USE, {hex(memory), "release"});
  EXPECT_OK(vmem_write(neighbour, &byte, 1));
  EXPECT_OK(release(part));
  EXPECT_OK(vmem_write(memory + 2000, &byte, 1));
  std::byte found{};
  EXPECT_OK(vmem_read(&found, neighbour, 1));
  EXPECT_EQ(found, byte);
  EXPECT_OK(vmem_free(memory, nullptr));
  EXPECT_OK(vmem_free(neighbour, nullptr));
}

TEST_F(BadHold, ShutdownIsRefusedWhileRangesAreHeldAndPossibleAfterwards) {
  void* memory = allocate(4 * kMiB);
  const vmem_range range = range_of(memory, 4 * kMiB);
  ASSERT_OK(acquire(range));
  EXPECT_REFUSED(vmem_shutdown(), VMEM_ERROR_IN_USE, {"release", "vmem_shutdown"});
  EXPECT_OK(vmem_memset(memory, 1, 100, nullptr)) << "a refused shutdown leaves the runtime as it was";
  EXPECT_OK(vmem_free(allocate(3000), nullptr)) << "for small allocations, too";
  EXPECT_OK(release(range));
  EXPECT_OK(vmem_free(memory, nullptr));
}

class BadArgument : public RuntimeTest {};

TEST_F(BadArgument, AccessThatMeansNothingIsRefused) {
  void* memory = allocate(4 * kMiB);
  for (const std::uint32_t access : {0u, 4u, 5u, 7u, 8u, 0x10u, ~0u}) {
    EXPECT_REFUSED(acquire(range_of(memory, 10, access)), VMEM_ERROR_INVALID_VALUE, {"access", "VMEM_READ"}) << access;
  }
  const vmem_range reserved{memory, 10, VMEM_READ, 1};
  EXPECT_REFUSED(acquire(reserved), VMEM_ERROR_INVALID_VALUE, {"reserved"});
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadArgument, UnknownAdviceIsRefused) {
  for (const std::size_t bytes : {4 * kMiB, std::size_t{1000}}) {
    void* memory = allocate(bytes);
    // 7 is the only unknown value that the enumeration can hold in C++.
    EXPECT_REFUSED(vmem_advise(memory, 10, vmem_advice(7)), VMEM_ERROR_INVALID_VALUE, {"7", "advice"});
    EXPECT_OK(vmem_free(memory, nullptr));
  }
}

TEST_F(BadArgument, AdviceThatCannotBeFollowedIsRefusedWithTheReason) {
  void* small = allocate(1000);
  EXPECT_REFUSED(vmem_advise(small, 1000, VMEM_ADVISE_IN_PLACE), VMEM_ERROR_UNSUPPORTED, {"1 MiB"});
  void* large = allocate(100 * kMiB);
  EXPECT_REFUSED(vmem_advise(large, 100 * kMiB, VMEM_ADVISE_PIN), VMEM_ERROR_OUT_OF_MEMORY,
                 {"100 MiB", "64 MiB", "--hbm"});
  EXPECT_OK(vmem_free(small, nullptr));
  EXPECT_OK(vmem_free(large, nullptr));
}

TEST_F(BadArgument, NullArgumentsAreNamed) {
  void* memory = allocate(4 * kMiB);
  EXPECT_REFUSED(vmem_malloc(nullptr, 100, 0, nullptr), VMEM_ERROR_INVALID_VALUE, {"out"});
  EXPECT_REFUSED(vmem_acquire(nullptr, 1, nullptr), VMEM_ERROR_INVALID_VALUE, {"ranges"});
  EXPECT_REFUSED(vmem_release(nullptr, 1, nullptr), VMEM_ERROR_INVALID_VALUE, {"ranges"});
  EXPECT_REFUSED(vmem_memcpy(nullptr, memory, 1, nullptr), VMEM_ERROR_INVALID_VALUE, {"dst"});
  EXPECT_REFUSED(vmem_memcpy(memory, nullptr, 1, nullptr), VMEM_ERROR_INVALID_VALUE, {"src"});
  EXPECT_REFUSED(vmem_read(nullptr, memory, 1), VMEM_ERROR_INVALID_VALUE, {"host_dst"});
  EXPECT_REFUSED(vmem_write(memory, nullptr, 1), VMEM_ERROR_INVALID_VALUE, {"host_src"});
  EXPECT_REFUSED(vmem_query(memory, nullptr), VMEM_ERROR_INVALID_VALUE, {"info"});
  EXPECT_REFUSED(vmem_stats(nullptr), VMEM_ERROR_INVALID_VALUE, {"out"});
  EXPECT_OK(vmem_acquire(nullptr, 0, nullptr)) << "no ranges are no error";
  EXPECT_OK(vmem_release(nullptr, 0, nullptr));
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadArgument, AnAbsurdCountOfRangesIsRefused) {
  void* memory = allocate(4 * kMiB);
  const vmem_range range = range_of(memory, 10);
  // -1 as 32 bits is a possible array length, and would need 100 GiB of bookkeeping.
  for (const std::size_t count : {SIZE_MAX, SIZE_MAX / 32, std::size_t{UINT32_MAX}, (std::size_t{1} << 20) + 1}) {
    EXPECT_REFUSED(vmem_acquire(&range, count, nullptr), VMEM_ERROR_INVALID_VALUE, {"count", std::to_string(count)});
    EXPECT_REFUSED(vmem_release(&range, count, nullptr), VMEM_ERROR_INVALID_VALUE, {"count", std::to_string(count)});
  }
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_F(BadArgument, StatisticsOfAnotherSizeAreRefused) {
  vmem_statistics stats{};
  for (const std::size_t bytes : {std::size_t{0}, sizeof stats - 1, sizeof stats + 8}) {
    stats.struct_bytes = std::uint32_t(bytes);
    EXPECT_REFUSED(vmem_stats(&stats), VMEM_ERROR_INVALID_VALUE,
                   {"struct_bytes", std::to_string(bytes), std::to_string(sizeof stats)});
  }
}

TEST_F(BadArgument, AHandleThatIsNoStreamIsRefused) {
  void* memory = allocate(4 * kMiB);
  const auto nonsense = reinterpret_cast<CUstream>(std::uintptr_t{0x123450});
  EXPECT_REFUSED(acquire(range_of(memory, 10), nonsense), VMEM_ERROR_INVALID_VALUE, {"0x123450"});
  EXPECT_REFUSED(vmem_memset(memory, 1, 10, nonsense), VMEM_ERROR_INVALID_VALUE, {"0x123450"});
  EXPECT_REFUSED(vmem_free(memory, nonsense), VMEM_ERROR_INVALID_VALUE, {"0x123450"});
  EXPECT_OK(vmem_stream_close(nonsense)) << "a stream vmem has not seen is ignored";
  EXPECT_OK(vmem_free(memory, nullptr));
}

}  // namespace
}  // namespace vmem::test
