// Settings and statistics of a MemoryService.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

#include "base/clock.hpp"
#include "rdma/lending/protocol.hpp"
#include "rdma/transport/transport.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

struct ServiceConfig {
  const Clock* clock = nullptr;     // outlives the service, as do memory, disk and hbm
  Bytes memory;                     // the memory to lend, then the staging memory
  std::uint64_t staging_bytes = 0;  // the part of memory for pages to and from the two below
  tiers::Tier* disk = nullptr;      // tiers that move host memory
  tiers::Tier* hbm = nullptr;
  // Limit of memory, of disk, and of HBM for one node.
  std::uint64_t client_bytes = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t grace_us = 60'000'000;
  std::uint64_t request_us = 10'000'000;  // deadline of a page sent or received
  std::uint32_t workers = 0;

  std::uint64_t lendable_bytes() const { return memory.size() - staging_bytes; }
  // Where pages of the medium are; null: in `memory`, or nothing of it is lent.
  tiers::Tier* tier(wire::Medium medium) const {
    return medium == wire::Medium::disk ? disk : medium == wire::Medium::hbm ? hbm : nullptr;
  }
  std::uint64_t budget_bytes(wire::Medium medium) const {
    if (medium == wire::Medium::memory) return lendable_bytes();
    return tier(medium) == nullptr ? 0 : tier(medium)->usage().budget_bytes;
  }
};
// The media whose pages pass through staging memory.
inline constexpr std::array kStaged = {wire::Medium::disk, wire::Medium::hbm};
inline bool is_staged(std::uint64_t offset) { return offset >= wire::first_offset(kStaged.front()); }

struct ServiceStatistics {
  wire::MediumBytes lent, held;  // in leases; in pages
  std::uint64_t clients = 0, pages = 0;
  std::uint64_t remembered = 0;  // nodes with entries in the reply cache
  std::uint64_t stored_bytes = 0, fetched_bytes = 0;
  std::uint64_t hbm_direct = 0, hbm_staged = 0;  // pages sent from HBM: from there; staged first
  std::uint64_t damaged = 0;                     // checksum mismatches, on arrival or later
  std::uint64_t rejected = 0;                    // malformed, stale, or not the sender's own
};

}  // namespace vmem::rdma
