// What one node lends to a tier, and which part of it holds copies. Data; CopyPlacer locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "rdma/lending/extents.hpp"
#include "rdma/lending/lease_message.hpp"
#include "rdma/lending/protocol.hpp"

namespace vmem::rdma {

// In one medium.
struct LentPart {
  Extents leased;  // offsets that were usable at some time
  // Less than that once a disk has failed, while the owner wants HBM back, or after a return.
  std::uint64_t usable = 0;
  std::uint64_t obtainable = 0;  // more than that, as the lender said last
  Extents room;                  // of the leased offsets
  std::uint64_t leaving = 0;     // of used(): copies that are being moved away

  std::uint64_t used() const { return leased.free_bytes() - room.free_bytes(); }
  std::uint64_t free_bytes() const { return usable - std::min(usable, used()); }
  std::uint64_t largest() const { return std::min(room.largest_bytes(), free_bytes()); }
};

struct LentRoom {
  bool ready = false;  // the node is connected
  bool draining = false;
  bool busy = false;  // stores wait for its path
  bool disk_failed = false;
  bool may_lend = false;  // it lends something to somebody
  std::uint64_t lease = 0;
  // Of this room. A lease that was dropped and is taken again is another room.
  std::uint64_t number = 0;
  std::array<LentPart, wire::kMedia.size()> parts;  // by medium
  std::array<std::uint32_t, wire::kMedia.size()> levels{0, 1, 0};

  LentPart& part(wire::Medium medium) { return parts[static_cast<std::size_t>(medium)]; }
  const LentPart& part(wire::Medium medium) const { return parts[static_cast<std::size_t>(medium)]; }
  LentPart& part_at(std::uint64_t offset) { return part(*wire::medium_of(offset)); }
  std::uint32_t level(wire::Medium medium) const { return levels[static_cast<std::size_t>(medium)]; }

  // Also if it is full, or nothing is leased yet. A node whose only disk failed lends nothing, and
  // is no place for copies.
  bool lends() const { return ready && (usable().sum() != 0 || (may_lend && !disk_failed)); }
  bool takes_pages() const { return lends() && !draining; }
  wire::MediumBytes usable() const;
  wire::MediumBytes leased() const;  // what the lender has granted, as far as is known
  wire::MediumBytes obtainable() const;
  std::uint64_t used() const;
  // A draining node counts with what it has.
  std::uint64_t budget(const LentPart& part) const {
    return draining ? std::min(part.used(), part.usable) : part.usable;
  }
  // The same as places: a page lies in one extent of memory, or in another medium.
  void add_places(std::vector<std::uint64_t>& places) const;
  std::uint64_t free_bytes() const;
  std::uint64_t largest() const;
  // The medium of the lowest level that has room for a page.
  std::optional<wire::Medium> medium_for(std::uint64_t bytes) const;

  // Begins without pages. Does not change what else is known of the node.
  void begin(const wire::Lent& lent, std::uint64_t room_number);
  void end();
  // The sizes of the same lease. False: it lacks memory that it had, which no lender may take.
  bool follow(const wire::Lent& lent);
  // No more of each medium is to be had.
  void limit(std::uint64_t bytes);
  // Only disks and HBM.
  void follow_tiers(const wire::MediumBytes& usable);
  // Takes out what is free beyond that: of disks and HBM the end. It is to be returned; of memory
  // the extents.
  std::vector<Extent> take_out(const wire::MediumBytes& wanted);
};

}  // namespace vmem::rdma
