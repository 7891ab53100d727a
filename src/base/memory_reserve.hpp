// Memory set aside for a thread of vmem's own. Such a thread keeps the books of pages and transfers: where an allocation
// failed in the middle, a transfer or a page would be forgotten. While an object of this class lives, an allocation of its
// thread that fails takes from the reserve instead, by way of std::new_handler. So only what needs more than the
// reserve, which is an array as large as a request asks for, throws std::bad_alloc.
#pragma once

#include <array>
#include <cstddef>
#include <new>

namespace vmem {

class MemoryReserve {
 public:
  static constexpr std::size_t kBlocks = 16;
  static constexpr std::size_t kBlockBytes = std::size_t{32} << 10;

  // For the calling thread, which ends it, too. A second one of a thread does nothing.
  MemoryReserve();
  ~MemoryReserve();
  MemoryReserve(const MemoryReserve&) = delete;
  MemoryReserve& operator=(const MemoryReserve&) = delete;

  // Between two pieces of work: makes the reserve whole again. False: there is not enough memory for that now.
  bool refill() noexcept;
  // Gives one block back to the allocator. False: none is left.
  bool release_one() noexcept;

 private:
  std::array<void*, kBlocks> blocks_{};
  std::size_t filled_ = 0;
  bool registered_ = false;
};

// What a thread of vmem's own does at a time. False: it lacked memory, more than the reserve has, and stopped there.
template <class Work>
bool had_memory(Work&& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace vmem
