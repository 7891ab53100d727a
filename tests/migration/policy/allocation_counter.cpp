#include "migration/policy/allocation_counter.hpp"

#include <malloc.h>

#include <cstdlib>
#include <new>

namespace {

std::int64_t live = 0;  // tests that read it are single-threaded

void* count(void* memory) {
  if (!memory) throw std::bad_alloc();
  live += std::int64_t(malloc_usable_size(memory));
  return memory;
}

void release(void* memory) {
  if (memory) live -= std::int64_t(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t bytes) { return count(std::malloc(bytes)); }
void* operator new[](std::size_t bytes) { return count(std::malloc(bytes)); }
void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }

std::int64_t vmem::migration::testing::live_bytes() { return live; }
