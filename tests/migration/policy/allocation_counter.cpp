#include "migration/policy/allocation_counter.hpp"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

// Atomic for the emulated driver's threads. Tests that read it run one thread.
std::atomic<std::int64_t> live{0};

void* count(void* memory) {
  if (!memory) throw std::bad_alloc();
  live.fetch_add(std::int64_t(malloc_usable_size(memory)), std::memory_order_relaxed);
  return memory;
}

void release(void* memory) {
  if (memory) live.fetch_sub(std::int64_t(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return count(std::malloc(bytes)); }
void* operator new[](std::size_t bytes) { return count(std::malloc(bytes)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

std::int64_t vmem::migration::testing::live_bytes() { return live.load(std::memory_order_relaxed); }
