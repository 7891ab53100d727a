// Moving bytes between addresses: what lies behind them, which link the bytes take, and what happens when there is
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vmem::emu {

class Context;

struct Transfer {
  std::uint64_t target = 0;
  std::uint64_t source = 0;
  std::size_t bytes = 0;
  int target_device = 0;  // whose access rights count at either end
  int source_device = 0;
};

// Both run on a stream's worker. An address that is by then not mapped, or not accessible, is a fault of the context.
enum class FixedCost { charged, waived };
void run_transfer(Context& context, const Transfer& transfer, FixedCost fixed_cost);
void run_fill(Context& context, std::uint64_t target, std::uint32_t value, unsigned value_bytes, std::size_t bytes);

// What a copy can do with an address.
enum class Reach { vmm, pinned, pageable };
Reach reach_of(std::uint64_t address);

}  // namespace vmem::emu
