// Places copies of pages in the memory, HBM and disks that nodes lend, and knows the places of
// each slot's copies. The lender is not asked: the borrower divides what its lease has.
//
// Thread: any. Its mutex is a leaf: nothing called under it locks.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rdma/lending/protocol.hpp"
#include "rdma/lending/remote_tier/lent_room.hpp"
#include "tiers/tier.hpp"

namespace vmem::rdma {

inline constexpr std::uint32_t kMostReplicas = 2;

// Place of a copy. lease 0: no copy; another room than the node's: the copy is gone.
struct CopyPlace {
  std::uint32_t node = 0;  // index in the tier's list of lenders
  std::uint64_t room = 0;  // its number (LentRoom)
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
  // `borrow_bytes`: the most of each medium of a node.
  CopyPlacer(std::vector<std::string> peers, std::uint32_t replicas, LastResort last = LastResort::draining_nodes,
             std::uint64_t borrow_bytes = UINT64_MAX)
      : replicas_(replicas),
        last_resort_(last),
        borrow_bytes_(borrow_bytes),
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
  // Whether the place is in the room that its node has now.
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

  // The room that a node lends. A new lease, or one that was dropped before, is another room,
  // without copies. False: under the same lease memory is missing; nothing has changed.
  bool set_room(std::uint32_t node, const wire::Lent& lent);
  // So much of the disks and HBM of a connected node is usable now. Returns what was usable before.
  wire::MediumBytes revise(std::uint32_t node, const wire::MediumBytes& usable);
  // The lease is to be no larger than this. Of what is free, takes out the rest, if it is
  // `surplus`: no page is placed there any more. It is to be returned to the lender. `surplus` is
  // called under the lock: whoever needs more has said so before it reads the budget.
  struct GivenUp {
    std::vector<Extent> memory;
    wire::MediumBytes left;  // of the lease
  };
  GivenUp give_up(std::uint32_t node, const wire::MediumBytes& wanted, const std::function<bool()>& surplus);
  // What the lease has and could have of each medium, for each node that can be asked for more, in
  // the order of the nodes.
  struct Lendable {
    std::uint32_t node = 0;
    std::uint64_t lease = 0;
    wire::MediumBytes usable, free, obtainable;
    std::array<std::uint32_t, wire::kMedia.size()> levels{};
  };
  std::vector<Lendable> lendable() const;
  // As places(), and what could be had besides.
  std::vector<std::uint64_t> obtainable_places() const;
  // The node is disconnected; its copies may return.
  void set_away(std::uint32_t node);
  // The node's lease has ended, and its copies with it.
  void drop(std::uint32_t node);
  // A draining node gets no new pages while others have room, and counts with what it has.
  void set_draining(std::uint32_t node, bool draining);
  // A busy node gets new pages only if no other has room.
  void set_busy(std::uint32_t node, bool busy);
  // Of places that do else, those of the lowest level come first. At first disks have level 1, and
  // the others 0.
  void set_level(std::uint32_t node, wire::Medium medium, std::uint32_t level);
  // Grows when repairs may have become necessary, or possible, and when the budget has changed.
  std::uint64_t revision() const { return revision_.load(std::memory_order_acquire); }
  std::uint32_t nodes() const;
  std::string address(std::uint32_t node) const;
  struct NodeRoom {
    wire::MediumBytes leased;      // granted, as far as is known
    wire::MediumBytes usable;      // of that
    wire::MediumBytes obtainable;  // besides what is usable
    bool draining = false, disk_failed = false;
    bool empty = true;   // no place there is given
    bool moves = false;  // pages have to leave it, or its HBM
  };
  NodeRoom room(std::uint32_t node) const;
  // The copy lies in HBM of which the owner wants back more than is being moved away.
  bool is_wanted_back(const CopyPlace& copy) const;

 private:
  struct Slot {
    std::uint64_t bytes = 0;  // 0: free
    std::uint64_t grant = 0;  // number of its allocation; 0: free
    CopyPlaces copies;
    CopyPlace leaves;  // the place from which reserve() has begun to move a copy; lease 0: none
  };
  using Room = LentRoom;

  // All require mutex_.
  tiers::TierUsage usage_now() const;
  bool wanted_back(const CopyPlace& copy) const;
  bool is_current(const CopyPlace& copy) const { return copy.lease != 0 && rooms_[copy.node].number == copy.room; }
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
  const std::uint64_t borrow_bytes_;

  mutable std::mutex mutex_;
  // Protected by mutex_.
  std::vector<std::string> peers_;      // addresses, by node
  std::vector<FailureDomain> domains_;  // by node
  std::vector<Room> rooms_;             // by node
  std::vector<Slot> slots_;
  std::vector<tiers::SlotId> free_slots_;
  std::uint64_t used_bytes_ = 0;
  std::uint64_t last_grant_ = 0, last_room_ = 0;
  std::atomic<std::uint64_t> revision_ = 0;  // written under mutex_
};

}  // namespace vmem::rdma
