// The parts that vmem.hpp adds to the C calls, with the real library and the emulated driver.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include "vmem/memory_resource.hpp"
#include "vmem/vmem.hpp"

extern "C" vmem_range vmem_test_range_in_c(void* ptr, size_t bytes);

namespace {

class VmemHpp : public ::testing::Test {
 protected:
  vmem::session session_{{"driver", "emulated"}, {"hbm", "64MiB"}, {"host", "256MiB"}};
};

vmem_status status_of(auto&& call) {
  try {
    call();
  } catch (const vmem::error& e) {
    EXPECT_STRNE(e.what(), "");
    return e.status();
  }
  return VMEM_OK;
}

// Stream types as other libraries define them.
struct ConvertingStream {
  operator vmem_stream() const { return stream; }
  vmem_stream stream = nullptr;
};
struct StreamWithGet {
  vmem_stream get() const { return stream; }
  vmem_stream stream = nullptr;
};

TEST_F(VmemHpp, SecondSessionIsRefusedAndLeavesTheFirstRunning) {
  EXPECT_EQ(status_of([] { vmem::init(); }), VMEM_ERROR_ALREADY_INITIALIZED);
  EXPECT_GT(vmem::stats().hbm_budget_bytes, 0u);
}

TEST(VmemHppSession, EndsWithItsScope) {
  {
    vmem::session session({{"driver", "emulated"}});
  }
  EXPECT_EQ(status_of([] { vmem::stats(); }), VMEM_ERROR_NOT_INITIALIZED);
}

TEST(VmemHppSession, UnknownOptionIsNamed) {
  try {
    vmem::session session({{"no_such_option", "1"}});
    FAIL() << "accepted";
  } catch (const vmem::error& e) {
    EXPECT_EQ(e.status(), VMEM_ERROR_INVALID_OPTION);
    EXPECT_NE(std::strstr(e.what(), "no_such_option"), nullptr) << e.what();
  }
}

TEST_F(VmemHpp, BufferCountsElementsAndBytes) {
  const vmem::buffer<std::uint64_t> typed(1000);
  EXPECT_EQ(typed.size(), 1000u);
  EXPECT_EQ(typed.bytes(), 8000u);
  EXPECT_EQ(vmem::query(typed).bytes, 8000u);
  const vmem::buffer raw(1000);
  static_assert(std::is_same_v<decltype(raw.data()), std::byte*>);
  EXPECT_EQ(raw.bytes(), 1000u);
}

TEST_F(VmemHpp, BufferFreesOnceWhenMoved) {
  vmem::buffer<int> a(100);
  int* const address = a.data();
  vmem::buffer<int> b(std::move(a));
  EXPECT_EQ(b.data(), address);
  EXPECT_TRUE(a.empty());  // NOLINT(bugprone-use-after-move): a moved-from buffer is empty
  b = vmem::buffer<int>(200);
  EXPECT_EQ(vmem::stats().allocated_bytes, 800u);
  b.reset();
  EXPECT_EQ(vmem::stats().allocated_bytes, 0u);
}

TEST_F(VmemHpp, ReleasedBufferIsTheCallersToFree) {
  vmem::buffer<int> b(100);
  int* const address = b.release();
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(vmem::query(address).bytes, 400u);
  EXPECT_EQ(vmem_free(address, nullptr), VMEM_OK);
}

TEST_F(VmemHpp, EmptyBufferAllocatesNothing) {
  const vmem::buffer<int> empty(0);
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_NO_THROW(vmem::prefetch(empty));
  EXPECT_EQ(vmem::stats().allocated_bytes, 0u);
}

TEST_F(VmemHpp, BufferBeyondEveryTierThrowsAndTakesNothing) {
  EXPECT_EQ(status_of([] { vmem::buffer<char>(std::size_t{1} << 40); }), VMEM_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(status_of([] { vmem::buffer<std::uint64_t>(std::size_t{1} << 62); }), VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(vmem::stats().allocated_bytes, 0u);
}

TEST_F(VmemHpp, StoreAndLoadMoveElementsAtAnOffset) {
  vmem::buffer<std::uint32_t> b(4096);
  std::vector<std::uint32_t> in(100);
  std::iota(in.begin(), in.end(), 7u);
  b.store(in, 1000);
  std::vector<std::uint32_t> out(50);
  b.load(out, 1010);
  EXPECT_EQ(out.front(), 17u);
  EXPECT_EQ(out.back(), 66u);
  EXPECT_EQ(status_of([&] { b.load(out, 4096 - 49); }), VMEM_ERROR_INVALID_RANGE);
  EXPECT_EQ(status_of([&] { b.load(out, static_cast<std::size_t>(-1)); }), VMEM_ERROR_INVALID_RANGE);
}

TEST_F(VmemHpp, ContentsSurviveWhenBuffersExceedHbm) {
  std::vector<vmem::buffer<>> buffers;
  for (int i = 0; i < 6; ++i) {
    buffers.emplace_back(32u << 20);
    vmem::memset(buffers.back().data(), i + 1, buffers.back().bytes());
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    std::byte last{};
    buffers[i].load(std::span(&last, 1), buffers[i].size() - 1);
    EXPECT_EQ(static_cast<std::size_t>(last), i + 1);
  }
}

TEST_F(VmemHpp, HoldHoldsForItsScope) {
  vmem::buffer<int> a(1000);
  vmem::buffer<int> b(1000);
  {
    const vmem::hold held(vmem::stream_view{}, vmem::read(a), vmem::write(b));
    EXPECT_EQ(status_of([&] { b.reset(); }), VMEM_ERROR_IN_USE);
    EXPECT_EQ(b.size(), 1000u);
  }
  EXPECT_EQ(status_of([&] { b.reset(); }), VMEM_OK);
}

TEST_F(VmemHpp, HoldReleasedEarlyIsNotReleasedAgain) {
  vmem::buffer<int> a(1000);
  vmem::hold outer(vmem::stream_view{}, vmem::read(a));
  {
    vmem::hold inner(vmem::stream_view{}, vmem::read(a));
    inner.release();
    inner.release();
  }
  EXPECT_EQ(status_of([&] { a.reset(); }), VMEM_ERROR_IN_USE) << "the outer hold was released by the inner one";
  outer.release();
  EXPECT_EQ(status_of([&] { a.reset(); }), VMEM_OK);
}

TEST_F(VmemHpp, FailedHoldHoldsNothing) {
  vmem::buffer<int> a(1000);
  int foreign = 0;
  EXPECT_EQ(status_of([&] { vmem::hold held(vmem::stream_view{}, vmem::read(a), vmem::read(&foreign, 4)); }),
            VMEM_ERROR_INVALID_POINTER);
  EXPECT_EQ(status_of([&] { a.reset(); }), VMEM_OK);
}

TEST_F(VmemHpp, StreamsOfOtherLibrariesConvert) {
  auto* const handle = reinterpret_cast<vmem_stream>(std::uintptr_t{2});
  EXPECT_EQ(vmem::stream_view(handle).get(), handle);
  EXPECT_EQ(vmem::stream_view(ConvertingStream{handle}).get(), handle);
  EXPECT_EQ(vmem::stream_view(StreamWithGet{handle}).get(), handle);
  static_assert(!std::is_convertible_v<int, vmem::stream_view>);
  static_assert(!std::is_convertible_v<std::size_t, vmem::stream_view>);
}

TEST_F(VmemHpp, ResourceAllocatesInEveryForm) {
  vmem::memory_resource resource;
  const vmem::stream_view stream;
  void* const allocated[] = {resource.allocate(stream, 1000),
                             resource.allocate(stream, 1000, 16),
                             resource.allocate(1000, stream),
                             resource.allocate(1000, 256),
                             resource.allocate_sync(1000),
                             resource.allocate_async(1000, stream),
                             resource.allocate_async(1000, 64, stream)};
  for (void* ptr : allocated) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ptr) % 256, 0u);
    EXPECT_EQ(vmem::query(ptr).bytes, 1000u);
  }
  resource.deallocate(stream, allocated[0], 1000);
  resource.deallocate(stream, allocated[1], 1000, 16);
  resource.deallocate(allocated[2], 1000, stream);
  resource.deallocate(allocated[3], 1000, 256);
  resource.deallocate_sync(allocated[4], 1000);
  resource.deallocate_async(allocated[5], 1000, stream);
  resource.deallocate_async(allocated[6], 1000, 64, stream);
  EXPECT_EQ(vmem::stats().allocated_bytes, 0u);
}

TEST_F(VmemHpp, ResourceThrowsBadAllocWhenFull) {
  vmem::memory_resource resource;
  try {
    resource.allocate(vmem::stream_view{}, std::size_t{1} << 40);
    FAIL() << "accepted";
  } catch (const std::bad_alloc& e) {
    EXPECT_STRNE(e.what(), "std::bad_alloc");
  }
}

TEST_F(VmemHpp, ResourceRefusesAlignmentItCannotGive) {
  vmem::memory_resource resource;
  for (const std::size_t alignment : {std::size_t{0}, std::size_t{48}, std::size_t{512}})
    EXPECT_EQ(status_of([&] { resource.allocate(vmem::stream_view{}, 100, alignment); }), VMEM_ERROR_INVALID_VALUE);
  EXPECT_EQ(resource.allocate(vmem::stream_view{}, 0), nullptr);
}

TEST(VmemHppResource, IsEqualOnTheSameDevice) {
  EXPECT_EQ(vmem::memory_resource(0), vmem::memory_resource(0));
  EXPECT_NE(vmem::memory_resource(0), vmem::memory_resource(1));
  EXPECT_TRUE(vmem::memory_resource(1).is_equal(vmem::memory_resource(1)));
}

TEST(VmemHppRange, IsWhatTheCCodeWouldWrite) {
  char bytes[16];
  const vmem_range c = vmem_test_range_in_c(bytes, sizeof(bytes));
  const vmem_range cpp = vmem::discard(bytes, sizeof(bytes));
  EXPECT_EQ(std::memcmp(&c, &cpp, sizeof(c)), 0);
}

}  // namespace
