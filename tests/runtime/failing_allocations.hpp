// Makes allocations fail. The program's operator new and aligned_alloc are replaced: while armed,
// one allocation of each call stack is refused once in the process's life, on any thread. A refused
// operator new calls the new handler and retries, or throws std::bad_alloc without one. REQUIRES:
// linked into the test program itself.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmem::test {

class FailingAllocations {
 public:
  // Refuses up to `most` allocations of call stacks not refused before, each after `apart` other
  // new ones.
  static void arm(std::uint32_t most, std::uint32_t apart);
  // Returns the number refused since arming.
  static std::uint32_t disarm();
  // Refuses every allocation of `bytes` or more, except the first `spared`.
  static void arm_from(std::size_t bytes, std::uint32_t spared);
  // While it lives, allocations of its thread do not fail: for the test's own work.
  class Spared {
   public:
    Spared();
    ~Spared();
    Spared(const Spared&) = delete;
    Spared& operator=(const Spared&) = delete;
  };
};

}  // namespace vmem::test
