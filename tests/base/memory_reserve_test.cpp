// The test's operator new fails on request. As the standard requires, it then calls the new handler
// and retries.
#include "base/memory_reserve.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <thread>

namespace {

thread_local std::size_t failures = 0;  // number of this thread's next allocations to fail

}  // namespace

// Not inlined: g++ would see memory of one allocation family freed by the other, and warn.
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

// Whether an allocation succeeds after `failing` failures.
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

// A handler that a library installs in front of the handler it found.
std::new_handler found_before = nullptr;
void ask_what_was_found() {
  if (found_before == nullptr) throw std::bad_alloc();
  found_before();
}

TEST(MemoryReserve, AHandlerThatAsksOursDoesNotMakeItAskForEver) {
  {
    const MemoryReserve reserve;
    found_before = std::set_new_handler(ask_what_was_found);
  }
  MemoryReserve reserve;
  EXPECT_TRUE(survives(MemoryReserve::kBlocks));
  EXPECT_FALSE(survives(1));
  EXPECT_TRUE(reserve.refill());
  EXPECT_TRUE(survives(1));
  std::set_new_handler(nullptr);
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
