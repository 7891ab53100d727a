// The check that every page has a place: the program can use what it has allocated, in any order.
// Pure.
//
// Overflow, the part of the commitments that a device's HBM cannot hold, must fit into memory lent
// by other GPUs, host memory and the tiers below. Part of each memory stays free, because pages
// change places through it (docs/decisions/0033).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace vmem::migration {

struct CommittedDevice {
  std::uint64_t hbm_bytes = 0;
  std::uint64_t committed_bytes = 0;
  std::uint64_t lenders = 0;  // bit i: the device can use Memories::lent_bytes[i]
};

// Page sizes in bytes: powers of two.
struct PageSizes {
  std::uint64_t wanted = 0;    // of the allocation being checked
  std::uint64_t smallest = 0;  // of all allocations, this one included
  std::uint64_t largest = 0;   // likewise
  std::uint64_t in_files = 0;  // largest page of a mapped file; 0: none is mapped

  constexpr void add(std::uint64_t bytes) {
    smallest = smallest == 0 ? bytes : std::min(smallest, bytes);
    largest = std::max(largest, bytes);
  }
};

struct Memories {
  std::vector<CommittedDevice> devices;
  std::vector<std::uint64_t> lent_bytes;  // without memory that the lender may revoke
  std::uint64_t host_bytes = 0;
  std::vector<std::uint64_t> below;  // bytes of each directory, and of each remote memory or disk
};

// The part of HBM that commitments can use.
std::uint64_t usable_hbm_bytes(std::uint64_t hbm_bytes, const PageSizes& pages);
// The part of host memory and the tiers below that commitments can use.
std::uint64_t usable_host_and_below_bytes(const Memories& memories, const PageSizes& pages);

// The first set of devices whose overflow does not fit, in bytes.
struct Shortfall {
  std::uint64_t overflow = 0;  // of the set
  std::uint64_t lent = 0;      // part of it that fits into memory of other GPUs
  std::uint64_t host_and_below = 0;
};
std::optional<Shortfall> shortfall(const Memories& memories, const PageSizes& pages);

// How much the tiers below need in all so that nothing falls short. 0: nothing is needed there.
// Their parts may change with it, and what is wasted in each: a first estimate for other parts.
std::uint64_t needed_below(const Memories& memories, const PageSizes& pages);

// What `device` can commit in total, and in addition to current commitments. A lower bound: the
// estimate does not check sets of devices.
struct Capacity {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
Capacity capacity(const Memories& memories, std::size_t device, const PageSizes& pages);

}  // namespace vmem::migration
