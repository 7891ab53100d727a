// What a borrower has here. Data only. Thread: the one that steps the service.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rdma/lending/protocol.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

// A page in a lease.
struct LentPage {
  enum class State : std::uint8_t { arriving, held };
  wire::SealedPage page;
  std::uint64_t sequence = 0;  // of the put
  State state = State::arriving;
  std::uint32_t readers = 0;
  bool released = false;  // erase once held and readers is 0
  std::optional<tiers::SlotId> disk_slot;
};

struct Lease {
  using Pages = std::map<std::uint64_t, LentPage>;  // by offset

  std::uint64_t id = 0;
  NodeIdentity client;
  std::string tenant;  // the proved identity
  PeerId peer{};       // 0: disconnected since gone_us
  std::uint64_t gone_us = 0;
  std::uint64_t first = 0, bytes = 0;  // in the lent memory
  std::uint64_t disk_range = 0;        // disk offsets are below this
  std::uint64_t disk_bytes = 0;        // usable part of disk_range; shrinks when a disk fails
  std::uint64_t touched = 0;           // nothing was written at or beyond this offset
  Pages pages;
  std::uint32_t busy = 0;  // puts and fetches that use its memory

  bool is_connected() const { return peer != PeerId{}; }
};
using LeaseRef = std::shared_ptr<Lease>;

inline bool is_on_disk(std::uint64_t offset) { return offset >= wire::kDiskOffset; }

}  // namespace vmem::rdma
