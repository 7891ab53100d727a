// Wrong sizes, pointers and ranges, for every function that takes them.
#include <fmt/format.h>

#include <climits>
#include <cstdint>
#include <functional>
#include <ostream>

#include "runtime/runtime_fixture.hpp"

namespace vmem::test {
namespace {

// Every function that takes a range of vmem memory, as a call with one range.
struct RangeCall {
  const char* name;
  std::function<vmem_status(void*, std::size_t)> call;
};
std::ostream& operator<<(std::ostream& out, const RangeCall& call) { return out << call.name; }

std::byte host_bytes[64];

const RangeCall kAcquire{"acquire", [](void* p, std::size_t n) { return acquire(range_of(p, n)); }};
const RangeCall kPrefetch{"prefetch", [](void* p, std::size_t n) { return vmem_prefetch(p, n); }};
const RangeCall kAdvise{"advise", [](void* p, std::size_t n) { return vmem_advise(p, n, VMEM_ADVISE_READ_MOSTLY); }};
const RangeCall kMemset{"memset", [](void* p, std::size_t n) { return vmem_memset(p, 1, n, nullptr); }};
const RangeCall kRead{"read", [](void* p, std::size_t n) { return vmem_read(host_bytes, p, n); }};
const RangeCall kWrite{"write", [](void* p, std::size_t n) { return vmem_write(p, host_bytes, n); }};
// The other end is host memory below vmem's addresses, so that no sum of the two overflows first.
const RangeCall kCopyTo{"memcpy_to", [](void* p, std::size_t n) { return vmem_memcpy(p, host_bytes, n, nullptr); }};
const RangeCall kCopyFrom{"memcpy_from", [](void* p, std::size_t n) { return vmem_memcpy(host_bytes, p, n, nullptr); }};

class BadSize : public RuntimeTest {};

TEST_F(BadSize, ZeroBytesAreRefused) {
  void* memory = this;
  EXPECT_REFUSED(vmem_malloc(&memory, 0, 0, nullptr), VMEM_ERROR_INVALID_VALUE, {"0 bytes"});
  EXPECT_EQ(memory, this) << "a failed call changes nothing";
}

TEST_F(BadSize, SizesBeyondTheAddressSpaceAreRefusedWithTheOptionToRaise) {
  const std::size_t space = 4096 * kMiB;
  for (const std::size_t bytes : {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, SIZE_MAX - 2 * kMiB + 2, space + 1}) {
    void* memory = this;
    EXPECT_REFUSED(vmem_malloc(&memory, bytes, 0, nullptr), VMEM_ERROR_ADDRESS_SPACE, {"--space"}) << bytes;
    EXPECT_EQ(memory, this);
  }
}

TEST_F(BadSize, AWorkingSetAboveHbmAndHostIsRefusedWithEachTiersFigures) {
  void* memory = nullptr;
  EXPECT_REFUSED(vmem_malloc(&memory, 1024 * kMiB, 0, nullptr), VMEM_ERROR_OUT_OF_MEMORY,
                 {"1 GiB", "64 MiB", "256 MiB", "--hbm", "--host"});
  // Also in small steps; earlier allocations stay usable.
  std::vector<void*> had;
  while (vmem_malloc(&memory, 20 * kMiB, 0, nullptr) == VMEM_OK) had.push_back(memory);
  EXPECT_GT(had.size(), 10u);
  EXPECT_OK(vmem_memset(had.back(), 1, 20 * kMiB, nullptr));
  for (void* each : had) EXPECT_OK(vmem_free(each, nullptr));
  expect_nothing_left();
}

TEST_F(BadSize, UnknownDevicesAreRefusedWithThoseInUse) {
  void* memory = nullptr;
  for (const int device : {-1, 2, INT_MAX, INT_MIN}) {
    EXPECT_REFUSED(vmem_malloc(&memory, 100, device, nullptr), VMEM_ERROR_INVALID_VALUE,
                   {fmt::format("device {}", device), "0, 1"});
  }
}

class SmallSpace : public RuntimeTest {
 protected:
  SmallSpace() : RuntimeTest({{"space", "64MiB"}}) {}
};

TEST_F(SmallSpace, AFullAddressSpaceIsNamedAndUsableAgainAfterAFree) {
  void* first = allocate(30 * kMiB);
  void* memory = nullptr;
  EXPECT_REFUSED(vmem_malloc(&memory, 40 * kMiB, 0, nullptr), VMEM_ERROR_ADDRESS_SPACE, {"40 MiB", "--space"});
  EXPECT_OK(vmem_free(first, nullptr));
  EXPECT_OK(vmem_malloc(&memory, 40 * kMiB, 0, nullptr));
  EXPECT_OK(vmem_free(memory, nullptr));
}

class BadRange : public RuntimeTest, public ::testing::WithParamInterface<RangeCall> {
 protected:
  vmem_status call(void* pointer, std::size_t bytes) { return GetParam().call(pointer, bytes); }
};

TEST_P(BadRange, FreedMemoryIsRefused) {
  for (const std::size_t bytes : {3 * kMiB, std::size_t{1000}}) {
    void* memory = allocate(bytes);
    ASSERT_OK(vmem_free(memory, nullptr));
    EXPECT_REFUSED(call(memory, 10), VMEM_ERROR_INVALID_POINTER, {hex(memory), "freed"});
  }
}

TEST_P(BadRange, AnAddressNeverAllocatedIsRefused) {
  auto* memory = static_cast<std::byte*>(allocate(3 * kMiB));
  EXPECT_REFUSED(call(memory + 1024 * kMiB, 10), VMEM_ERROR_INVALID_POINTER, {hex(memory + 1024 * kMiB)});
  EXPECT_OK(vmem_free(memory, nullptr));
}

TEST_P(BadRange, OnePastTheEndIsNoAddressOfTheAllocation) {
  for (const std::size_t bytes : {3 * kMiB + 5, 4 * kMiB, std::size_t{1000}, std::size_t{1024}}) {
    auto* memory = static_cast<std::byte*>(allocate(bytes));
    EXPECT_REFUSED(call(memory + bytes, 1), VMEM_ERROR_INVALID_POINTER, {hex(memory + bytes)}) << bytes;
    EXPECT_OK(vmem_free(memory, nullptr));
  }
}

TEST_P(BadRange, RangesThatLeaveTheAllocationAreRefusedWithItsPlace) {
  for (const std::size_t bytes : {3 * kMiB + 5, 4 * kMiB, std::size_t{1000}, std::size_t{1024}}) {
    auto* memory = static_cast<std::byte*>(allocate(bytes));
    for (const std::size_t asked : {bytes + 1, SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2}) {
      EXPECT_REFUSED(call(memory, asked), VMEM_ERROR_INVALID_RANGE, {hex(memory), fmt::format("{} bytes", bytes)})
          << asked;
    }
    EXPECT_REFUSED(call(memory + bytes - 1, 2), VMEM_ERROR_INVALID_RANGE, {hex(memory + bytes - 1)});
    EXPECT_OK(vmem_free(memory, nullptr));
  }
}

TEST_P(BadRange, ARangeOverTwoAllocationsIsRefusedThoughBothAreLive) {
  std::byte* pairs[][2] = {{static_cast<std::byte*>(allocate(4 * kMiB)), static_cast<std::byte*>(allocate(4 * kMiB))},
                           {static_cast<std::byte*>(allocate(512)), static_cast<std::byte*>(allocate(512))}};
  for (auto& [first, second] : pairs) {
    std::byte* lower = std::min(first, second);
    const auto apart = std::size_t(std::max(first, second) - lower);
    EXPECT_REFUSED(call(lower, apart + 1), VMEM_ERROR_INVALID_RANGE, {hex(lower)});
    EXPECT_OK(vmem_free(first, nullptr));
    EXPECT_OK(vmem_free(second, nullptr));
  }
}

TEST_P(BadRange, NothingIsHeldOrChangedAfterARefusal) {
  auto* memory = static_cast<std::byte*>(allocate(4 * kMiB));
  EXPECT_NE(call(memory, 4 * kMiB + 1), VMEM_OK);
  EXPECT_OK(vmem_free(memory, nullptr));
  expect_nothing_left();
}

INSTANTIATE_TEST_SUITE_P(Functions, BadRange,
                         ::testing::Values(kAcquire, kPrefetch, kAdvise, kMemset, kRead, kWrite, kCopyTo, kCopyFrom),
                         [](const auto& instance) { return std::string(instance.param.name); });

// Foreign memory is valid for memcpy: any pointer that CUDA accepts.
class ForeignRange : public BadRange {};

TEST_P(ForeignRange, MemoryOfTheHostIsRefusedWithVmemsBounds) {
  std::vector<std::byte> host(4 * kMiB);
  EXPECT_REFUSED(call(host.data(), 10), VMEM_ERROR_INVALID_POINTER, {hex(host.data()), "not vmem memory"});
  EXPECT_REFUSED(call(nullptr, 10), VMEM_ERROR_INVALID_POINTER);
  EXPECT_REFUSED(call(reinterpret_cast<void*>(~std::uintptr_t{0}), 10), VMEM_ERROR_INVALID_POINTER);
}

TEST_P(ForeignRange, ZeroBytesAreNoRange) {
  void* memory = allocate(4 * kMiB);
  if (std::string(GetParam().name) != "memset") {
    EXPECT_REFUSED(call(memory, 0), VMEM_ERROR_INVALID_VALUE, {"0 bytes", hex(memory)});
  } else {
    EXPECT_OK(call(memory, 0)) << "as with cuMemsetD8Async";
  }
  EXPECT_OK(vmem_free(memory, nullptr));
}

INSTANTIATE_TEST_SUITE_P(Functions, ForeignRange,
                         ::testing::Values(kAcquire, kPrefetch, kAdvise, kMemset, kRead, kWrite),
                         [](const auto& instance) { return std::string(instance.param.name); });

class BadPointer : public RuntimeTest {};

TEST_F(BadPointer, FreeTakesOnlyWhatMallocGave) {
  std::byte host[16]{};
  EXPECT_OK(vmem_free(nullptr, nullptr));
  EXPECT_REFUSED(vmem_free(host, nullptr), VMEM_ERROR_INVALID_POINTER, {hex(host), "not vmem memory"});
  for (const std::size_t bytes : {5 * kMiB, std::size_t{3000}}) {
    auto* memory = static_cast<std::byte*>(allocate(bytes));
    for (const std::size_t offset : {std::size_t{1}, std::size_t{256}, bytes - 1, bytes}) {
      EXPECT_REFUSED(vmem_free(memory + offset, nullptr), VMEM_ERROR_INVALID_POINTER, {hex(memory + offset)}) << offset;
    }
    EXPECT_OK(vmem_free(memory, nullptr));
    EXPECT_REFUSED(vmem_free(memory, nullptr), VMEM_ERROR_INVALID_POINTER, {hex(memory)});
  }
}

TEST_F(BadPointer, QueryTakesOnlyAddressesOfLiveAllocations) {
  std::byte host[16]{};
  vmem_pointer_info info{};
  EXPECT_REFUSED(vmem_query(host, &info), VMEM_ERROR_INVALID_POINTER, {hex(host)});
  EXPECT_REFUSED(vmem_query(nullptr, &info), VMEM_ERROR_INVALID_POINTER);
  for (const std::size_t bytes : {5 * kMiB + 1, std::size_t{3000}}) {
    auto* memory = static_cast<std::byte*>(allocate(bytes));
    EXPECT_OK(vmem_query(memory + bytes - 1, &info));
    EXPECT_EQ(info.base, memory);
    EXPECT_REFUSED(vmem_query(memory + bytes, &info), VMEM_ERROR_INVALID_POINTER, {hex(memory + bytes)});
    EXPECT_OK(vmem_free(memory, nullptr));
    EXPECT_REFUSED(vmem_query(memory, &info), VMEM_ERROR_INVALID_POINTER, {hex(memory), "freed"});
  }
}

TEST_F(BadPointer, OverlappingCopiesAreRefusedAndAdjacentOnesDone) {
  auto* memory = static_cast<std::byte*>(allocate(6 * kMiB));
  for (const std::size_t apart : {std::size_t{0}, std::size_t{1}, 2 * kMiB - 1}) {
    EXPECT_REFUSED(vmem_memcpy(memory + apart, memory, 2 * kMiB, nullptr), VMEM_ERROR_INVALID_VALUE,
                   {"overlap", hex(memory)});
    EXPECT_REFUSED(vmem_memcpy(memory, memory + apart, 2 * kMiB, nullptr), VMEM_ERROR_INVALID_VALUE,
                   {"overlap", hex(memory)});
  }
  EXPECT_OK(vmem_memset(memory, 7, 2 * kMiB, nullptr));
  EXPECT_OK(vmem_memcpy(memory + 2 * kMiB, memory, 2 * kMiB, nullptr));
  EXPECT_OK(vmem_free(memory, nullptr));
}

}  // namespace
}  // namespace vmem::test
