// Settings and statistics of a MemoryService.
#pragma once

#include <cstdint>
#include <limits>

#include "base/clock.hpp"
#include "rdma/transport/transport.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct ServiceConfig {
  const Clock* clock = nullptr;     // outlives the service, as do memory and disk
  Bytes memory;                     // the memory to lend, then the staging memory
  std::uint64_t staging_bytes = 0;  // the part of memory for pages to and from the disk
  tiers::Tier* disk = nullptr;      // a tier that moves host memory
  // Limit of memory, and of disk, for one node.
  std::uint64_t client_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t grace_us = 60'000'000;
  std::uint64_t request_us = 10'000'000;  // deadline of a page sent or received
  std::uint32_t workers = 0;

  std::uint64_t lendable_bytes() const { return memory.size() - staging_bytes; }
  std::uint64_t disk_budget_bytes() const { return disk == nullptr ? 0 : disk->usage().budget_bytes; }
};

struct ServiceStatistics {
  std::uint64_t lent_bytes = 0, disk_lent_bytes = 0;  // in leases
  std::uint64_t held_bytes = 0, disk_held_bytes = 0;  // in pages
  std::uint64_t clients = 0, pages = 0;
  std::uint64_t remembered = 0;  // nodes with entries in the reply cache
  std::uint64_t stored_bytes = 0, fetched_bytes = 0;
  std::uint64_t damaged = 0;   // checksum mismatches, on arrival or later
  std::uint64_t rejected = 0;  // malformed, stale, or not the sender's own
};

}  // namespace vmem::rdma
