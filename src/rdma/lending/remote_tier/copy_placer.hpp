// Places copies of pages in the memory, HBM and disks that nodes lend, and knows the places of
// each slot's copies. The lender is not asked: a lease is a range that its borrower divides.
//
// Thread: any. Its mutex is a leaf: nothing called under it locks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rdma/lending/extents.hpp"
#include "rdma/lending/protocol.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

inline constexpr std::uint32_t kMostReplicas = 2;

// Place of a copy. lease 0: no copy; another lease than the node's: the copy is gone.
struct CopyPlace {
  std::uint32_t node = 0;  // index in the tier's list of lenders
  std::uint64_t lease = 0;
  std::uint64_t offset = 0;
  bool operator==(const CopyPlace&) const = default;
};
using CopyPlaces = std::array<CopyPlace, kMostReplicas>;
using ValidCopies = std::array<bool, kMostReplicas>;  // which copies of a page have its bytes

// A slot from its allocation to its release. The mover may release a slot, and get it again, while
// the node's thread repairs what it held.
struct GrantedSlot {
  tiers::SlotId slot = 0;
  std::uint64_t grant = 0;
};

// What fails together with a node. "": unknown.
struct FailureDomain {
  std::string rack, host;
};

// What is to be done in the background for the copies of a page.
struct Repair {
  enum class Kind : std::uint8_t {
    none,
    make,  // this copy, at a place that reserve() gives; it replaces the one there is, if any
    drop,  // this copy has to leave its place, and there are enough others
  };
  Kind kind = Kind::none;
  std::size_t copy = 0;
};

class CopyPlacer {
 public:
  // Whether pages that fit nowhere else go to draining nodes.
  enum class LastResort : std::uint8_t { draining_nodes, none };
  CopyPlacer(std::vector<std::string> peers, std::uint32_t replicas, LastResort last = LastResort::draining_nodes)
      : replicas_(replicas),
        last_resort_(last),
        peers_(std::move(peers)),
        domains_(peers_.size()),
        rooms_(peers_.size()) {}

  // A further node, which lends nothing yet. Returns its index.
  std::uint32_t add_node(const std::string& address, FailureDomain domain = {});

  // Slots, as in tiers::Tier.
  tiers::TierUsage usage() const;
  std::vector<std::uint64_t> places() const;  // for Tier::places
  Result<tiers::SlotGrant> allocate(std::uint64_t page_bytes);
  CopyPlaces release(tiers::SlotId slot);  // returns where the copies were
  // Has fewer copies than the connected nodes allow.
  bool degraded(tiers::SlotId slot) const;
  std::string where(tiers::SlotId slot) const;

  CopyPlaces copies(tiers::SlotId slot) const;
  // Whether the place's lease is the node's current one.
  bool is_there(const CopyPlace& copy) const;
  // Gives a copy another place, perhaps on the same node: its node is away, has lost it or could
  // not store it. The caller stores the bytes there. False: no node has room.
  bool assign_new_place(tiers::SlotId slot, std::size_t copy);

  // REQUIRES: the slot is not released meanwhile.
  GrantedSlot granted(tiers::SlotId slot) const;
  // What the slot's copies lack, if these are valid: lost copies are made again while nodes have
  // room, and copies leave draining nodes, and HBM that is wanted back. Nothing, if the slot was
  // released.
  Repair repair(GrantedSlot slot, const ValidCopies& valid) const;
  // A place for a new copy, beside the slot's other ones. nullopt: no node has room, or the slot
  // was released. Ends with replace() or cancel().
  std::optional<CopyPlace> reserve(GrantedSlot slot, std::size_t copy);
  void cancel(GrantedSlot slot, const CopyPlace& reserved, std::uint64_t bytes);
  // The copy lies there from now on. Returns where it was; that room is free. nullopt: the slot was
  // released, and nothing has changed.
  std::optional<CopyPlace> replace(GrantedSlot slot, std::size_t copy, const CopyPlace& reserved);

  // The room that a node lends. A new lease replaces the old one, whose copies are gone. Under the
  // same lease only the usable part of disk and HBM changes.
  void set_room(std::uint32_t node, const wire::Lent& lent);
  // The same for a connected node and its lease. Returns what was usable before.
  wire::MediumBytes revise(std::uint32_t node, const wire::MediumBytes& usable);
  // The node is disconnected; its copies may return.
  void set_away(std::uint32_t node);
  // The node's lease has ended, and its copies with it.
  void drop(std::uint32_t node);
  // A draining node gets no new pages while others have room, and counts with what it has.
  void set_draining(std::uint32_t node, bool draining);
  bool is_draining(std::uint32_t node) const;
  // A busy node gets new pages only if no other has room.
  void set_busy(std::uint32_t node, bool busy);
  // Of places that do else, those of the lowest level come first. At first disks have level 1, and
  // the others 0.
  void set_level(std::uint32_t node, wire::Medium medium, std::uint32_t level);
  bool is_empty(std::uint32_t node) const;  // no place there is given
  // Grows when repairs may have become necessary, or possible.
  std::uint64_t revision() const;
  std::uint32_t nodes() const;
  std::string address(std::uint32_t node) const;
  wire::MediumBytes lent(std::uint32_t node) const;  // the usable part
  bool disk_failed(std::uint32_t node) const;
  // The copy lies in HBM of which the owner wants back more than is being moved away.
  bool is_wanted_back(const CopyPlace& copy) const;

 private:
  struct Slot {
    std::uint64_t bytes = 0;  // 0: free
    std::uint64_t grant = 0;  // number of its allocation; 0: free
    CopyPlaces copies;
    CopyPlace leaves;  // the place from which reserve() has begun to move a copy; lease 0: none
  };
  // What a node lends in one medium.
  struct Part {
    std::uint64_t leased = 0;  // the most that was usable
    // Less than that once a disk has failed, or while the owner wants HBM back.
    std::uint64_t usable = 0;
    Extents room;
    std::uint64_t leaving = 0;  // of used(): copies that are being moved away
    std::uint64_t used() const { return leased - room.free_bytes(); }
    std::uint64_t free_bytes() const { return usable - std::min(usable, used()); }
    std::uint64_t largest() const { return std::min(room.largest_bytes(), free_bytes()); }
  };
  struct Room {
    bool ready = false;  // the node is connected
    bool draining = false;
    bool busy = false;  // stores wait for its path
    std::uint64_t lease = 0;
    std::array<Part, wire::kMedia.size()> parts;  // by medium
    std::array<std::uint32_t, wire::kMedia.size()> levels{0, 1, 0};

    Part& part(wire::Medium medium) { return parts[static_cast<std::size_t>(medium)]; }
    const Part& part(wire::Medium medium) const { return parts[static_cast<std::size_t>(medium)]; }
    Part& part_at(std::uint64_t offset) { return part(*wire::medium_of(offset)); }
    // A node whose only disk failed lends nothing, and is no place for copies.
    bool lends() const { return ready && usable().sum() != 0; }
    bool takes_pages() const { return lends() && !draining; }
    wire::MediumBytes usable() const;
    void set_usable(const wire::MediumBytes& usable);
    std::uint64_t used() const;
    std::uint64_t budget(const Part& part) const { return draining ? std::min(part.used(), part.usable) : part.usable; }
    std::uint64_t free_bytes() const;
    std::uint64_t largest() const;
    // The medium of the lowest level that has room for a page.
    std::optional<wire::Medium> medium_for(std::uint64_t bytes) const;
    std::uint32_t level(wire::Medium medium) const { return levels[static_cast<std::size_t>(medium)]; }
  };

  // All require mutex_.
  tiers::TierUsage usage_now() const;
  bool wanted_back(const CopyPlace& copy) const;
  bool is_current(const CopyPlace& copy) const { return copy.lease != 0 && rooms_[copy.node].lease == copy.lease; }
  using Eligible = bool (Room::*)() const;
  std::optional<CopyPlace> place(std::uint64_t bytes, std::span<const CopyPlace> apart_from,
                                 Eligible eligible = &Room::takes_pages);
  std::optional<Slot> place_all(std::uint64_t page_bytes, Eligible eligible);
  std::optional<CopyPlace> place_beside_others(const Slot& slot, std::size_t copy);
  // How far a node is from the nearest of the copies: 2 another rack, 1 another host, 0 unknown.
  int distance(std::uint32_t node, std::span<const CopyPlace> copies) const;
  void give_back(const CopyPlace& copy, std::uint64_t bytes);
  void end_move(Slot& slot);
  Result<tiers::SlotGrant> no_room(std::uint64_t page_bytes) const;

  const std::uint32_t replicas_;
  const LastResort last_resort_;

  mutable std::mutex mutex_;
  // Protected by mutex_.
  std::vector<std::string> peers_;      // addresses, by node
  std::vector<FailureDomain> domains_;  // by node
  std::vector<Room> rooms_;             // by node
  std::vector<Slot> slots_;
  std::vector<tiers::SlotId> free_slots_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t revision_ = 0, last_grant_ = 0;
};

}  // namespace vmem::rdma
