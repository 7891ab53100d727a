// Copies and fills between addresses: memory lookup, link throttling, and faults on unmapped
// memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmem::emu {

class Context;

struct Transfer {
  std::uint64_t target = 0;
  std::uint64_t source = 0;
  std::size_t bytes = 0;
  // The devices whose access rights apply at the two ends.
  int target_device = 0;
  int source_device = 0;
};

// Both run on a stream's worker. An address unmapped or inaccessible by then faults the context.
enum class FixedCost { charged, waived };
void run_transfer(Context& context, const Transfer& transfer, FixedCost fixed_cost);
void run_fill(Context& context, std::uint64_t target, std::uint32_t value, unsigned value_bytes, std::size_t bytes);

// How a copy can access an address.
enum class Reach { vmm, pinned, pageable };
Reach reach_of(std::uint64_t address);

}  // namespace vmem::emu
