// How an attempt to move a page, or to make room for one, ended. If it failed: what has to happen
// before another attempt can succeed.
#pragma once

#include <cstdint>

namespace vmem::migration {

// Ordered by certainty: if several ways lead to the goal, wait for the one with the least value.
enum class Attempt : std::uint8_t {
  done,
  after_transfer,  // a transfer ends, or a tier answers
  after_gpu,       // GPU work ends, or a copy that is ordered behind it
  after_release,   // a thread ends an acquire, a pin, vmem_read or vmem_write, or frees memory
  never,           // the program frees something
};

// Another attempt may succeed although no thread does anything.
constexpr bool comes(Attempt attempt) { return attempt == Attempt::after_transfer || attempt == Attempt::after_gpu; }

}  // namespace vmem::migration
