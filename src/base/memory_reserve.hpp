// Memory reserved for one of vmem's own threads. Such a thread keeps the records of pages and
// transfers: a failed allocation midway would lose a transfer or a page. While an object of this
// class lives, a failed allocation of its thread is served from the reserve, through
// std::new_handler. So only an allocation larger than the reserve throws std::bad_alloc: an array
// as large as a request asks for, or the growth of a large hash table.
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace vmem {

class MemoryReserve {
 public:
  static constexpr std::size_t kBlocks = 16;
  static constexpr std::size_t kBlockBytes = std::size_t{32} << 10;

  // For the calling thread, which must also destroy the object. A thread's second object does
  // nothing.
  MemoryReserve();
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Between two pieces of work: refills the reserve. False: not enough memory now.
  bool refill() noexcept;
  // Frees one block to the allocator. False: none is left.
  bool release_one() noexcept;

 private:
  std::array<void*, kBlocks> blocks_{};
  std::size_t filled_ = 0;
  bool registered_ = false;
};

// Runs one piece of work. False: the work ran out of memory, the thread's reserve included, and
// stopped there.
template <class Work>
bool ran_within_memory(Work&& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace vmem
