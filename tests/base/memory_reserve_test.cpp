// The test's operator new fails when it is told to, and then does what the standard says: it calls the handler and tries
// again.
#include "base/memory_reserve.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <thread>

namespace {

thread_local std::size_t failures = 0;  // of this thread's next allocations

}  // namespace

// None of the three is inlined: g++ would see `free` or `operator delete` of what came from the
// other family, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  for (;;) {
    if (failures == 0) {
      if (void* const memory = std::malloc(bytes)) return memory;
    } else {
      --failures;
    }
    const std::new_handler handler = std::get_new_handler();
    if (handler == nullptr) throw std::bad_alloc();
    handler();
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace vmem {
namespace {

// Whether an allocation comes through so many failures.
bool survives(std::size_t failing) {
  failures = failing;
  try {
    ::operator delete(::operator new(64));
    return true;
  } catch (const std::bad_alloc&) {
    failures = 0;
    return false;
  }
}

TEST(MemoryReserve, AnAllocationThatFailsTakesFromTheReserve) {
  MemoryReserve reserve;
  EXPECT_TRUE(survives(1));
  EXPECT_TRUE(survives(MemoryReserve::kBlocks - 1)) << "the rest of it";
  EXPECT_FALSE(survives(1)) << "nothing is left";
  EXPECT_TRUE(reserve.refill());
  EXPECT_TRUE(survives(MemoryReserve::kBlocks));
}

TEST(MemoryReserve, OtherThreadsFailAsWithoutIt) {
  MemoryReserve reserve;
  bool survived = true;
  std::thread([&] { survived = survives(1); }).join();
  EXPECT_FALSE(survived);
  EXPECT_TRUE(survives(1));
}

TEST(MemoryReserve, TheHandlerGoesWithTheLastReserve) {
  const std::new_handler before = std::get_new_handler();
  {
    MemoryReserve reserve;
    EXPECT_NE(std::get_new_handler(), before);
  }
  EXPECT_EQ(std::get_new_handler(), before);
  EXPECT_FALSE(survives(1));
}

}  // namespace
}  // namespace vmem
