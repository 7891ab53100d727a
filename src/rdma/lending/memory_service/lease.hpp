// What a borrower has here. Data only. Thread: the one that steps the service.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/memory_service/lent_memory.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

// A page in a lease.
struct LentPage {
  enum class State : std::uint8_t { arriving, held };
  wire::SealedPage page;
  std::uint64_t sequence = 0;  // of the put
  State state = State::arriving;
  std::uint32_t readers = 0;
  bool released = false;              // erase once held and readers is 0
  std::optional<tiers::SlotId> slot;  // on a disk, or in HBM
};

// The room of a lease in a medium.
struct Quota {
  std::uint64_t granted = 0;  // on disks and in HBM, offsets are below it
  std::uint64_t bytes = 0;    // usable part: less than was granted while the medium has less
};

struct Lease {
  using Pages = std::map<std::uint64_t, LentPage>;  // by offset

  std::uint64_t id = 0;
  NodeIdentity client;
  std::string tenant;  // the proved identity
  PeerId peer{};       // 0: disconnected since gone_us
  std::uint64_t gone_us = 0;
  std::array<Quota, wire::kMedia.size()> quotas;
  // Changes its size when the borrower asks. If not, its memory is one extent, and offsets count
  // from there.
  bool resizable = true;
  std::uint64_t base = 0;   // of offsets in memory
  std::uint64_t asked = 0;  // sequence of the last ask
  LentMemory memory;
  Pages pages;
  std::uint32_t busy = 0;  // puts and fetches that use its memory
  // Connections that broke while pages in HBM were sent directly, with none sent so since; the last
  // of them.
  std::uint32_t direct_breaks = 0;
  PeerId broken{};

  bool is_connected() const { return peer != PeerId{}; }
  Extent in_memory(std::uint64_t offset, std::uint64_t bytes) const { return {base + offset, bytes}; }
  Quota& quota(wire::Medium medium) { return quotas[static_cast<std::size_t>(medium)]; }
  const Quota& quota(wire::Medium medium) const { return quotas[static_cast<std::size_t>(medium)]; }
  wire::MediumBytes usable() const {
    wire::MediumBytes bytes;
    for (const wire::Medium medium : wire::kMedia) bytes[medium] = quota(medium).bytes;
    return bytes;
  }
};
using LeaseRef = std::shared_ptr<Lease>;

}  // namespace vmem::rdma
