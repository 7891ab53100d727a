// The check that every page has a place: what an allocation commits can be used later, in whatever order. Pure.
//
// What a device's HBM cannot hold has to fit into memory that other GPUs lend it, host memory, and what is below. Some of each is
// left free, because pages change places through it (docs/decisions/0033).
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
  std::uint64_t lenders = 0;  // bit i: Memories::lent_bytes[i] is within its reach
};

// Sizes of pages, in bytes: powers of two.
struct PageSizes {
  std::uint64_t wanted = 0;    // of what is to be committed
  std::uint64_t smallest = 0;  // of that and all that is committed
  std::uint64_t largest = 0;   // likewise
  std::uint64_t in_files = 0;  // the largest of mapped files, 0 without one

  constexpr void add(std::uint64_t bytes) {
    smallest = smallest == 0 ? bytes : std::min(smallest, bytes);
    largest = std::max(largest, bytes);
  }
};

struct Memories {
  std::vector<CommittedDevice> devices;
  std::vector<std::uint64_t> lent_bytes;  // as much as is lent for certain
  std::uint64_t host_bytes = 0;
  std::vector<std::uint64_t> below;  // each directory, and each memory and disk of other nodes, in bytes
};

// HBM that commitments may take.
std::uint64_t usable_hbm_bytes(std::uint64_t hbm_bytes, const PageSizes& pages);
// Host memory, and what is below it, that commitments may take.
std::uint64_t usable_host_and_below_bytes(const Memories& memories, const PageSizes& pages);

// The first set of devices whose overflow does not fit, in bytes.
struct Shortfall {
  std::uint64_t overflow = 0;  // beyond the HBM of the set
  std::uint64_t lent = 0;      // of it may go to other GPUs
  std::uint64_t host_and_below = 0;
};
std::optional<Shortfall> shortfall(const Memories& memories, const PageSizes& pages);

// What `device` may commit in all, and beside what is committed: at least, since sets of devices are not looked at.
struct Capacity {
  std::uint64_t total_bytes = 0, free_bytes = 0;
};
Capacity capacity(const Memories& memories, std::size_t device, const PageSizes& pages);

}  // namespace vmem::migration
