// Allocations that fail. The program's operator new and aligned_alloc are replaced: while armed, one of each call stack is
// refused, once in the process's life, on whatever thread it comes. What is refused goes the standard's way: to the new
// handler, and again; without one std::bad_alloc is thrown. REQUIRES: linked into the test program itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmem::test {

class FailingAllocations {
 public:
  // From now on, `most` allocations in all of call stacks that were not refused before, each after `apart` other new ones.
  static void arm(std::uint32_t most, std::uint32_t apart);
  // Returns how many were refused since.
  static std::uint32_t disarm();
  // From now on, all of `bytes` and more but the first `spared` ones, every time.
  static void arm_from(std::size_t bytes, std::uint32_t spared);
  // What the test does for itself: its thread is spared meanwhile.
  class Spared {
   public:
    Spared();
    ~Spared();
    Spared(const Spared&) = delete;
    Spared& operator=(const Spared&) = delete;
  };
};

}  // namespace vmem::test
