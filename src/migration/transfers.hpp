// The ledger of transfers in flight. Room for an entry is reserved before its transfer is submitted: what a tier has begun
// is always known here, and ends here. Thread: the mover's.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <utility>

#include "pagetable/region.hpp"
#include "tiers/tier.hpp"

namespace vmem::migration {

// A slot of near memory: the host's (0), or one of MoverConfig::lent (1 and up).
struct Place {
  std::uint8_t near = 0;
  tiers::SlotId slot = pagetable::kNoFrame;
};

struct InFlight {
  pagetable::Region* region;
  std::uint32_t page;
  std::uint64_t bytes;
  tiers::Direction direction;
  enum class Kind : std::uint8_t {
    frame,
    compare,
    spill,
    returned,
    arrival,
    arrival_check
  };  // a page in HBM, copied or compared; see spill.cpp; see lend.cpp; see arrive.cpp
  Kind kind = Kind::frame;
  std::uint64_t version = 0;                  // of what is moved
  std::uint64_t since_us = 0;                 // of what a disk or a node moves
  Place from;                                 // of what is returned: the slot that it leaves
  std::uint32_t frame = pagetable::kNoFrame;  // of an arrival: no page's yet
  // As the tier answered.
  bool if_changed = false;
  CUevent done = nullptr;
};

class Transfers {
  using Map = std::map<std::uint64_t, InFlight>;

 public:
  class Room {
    friend class Transfers;
    explicit Room(Map::node_type node) : node_(std::move(node)) {}
    Map::node_type node_;
  };

  // Before the transfer is submitted. Lack of memory throws std::bad_alloc.
  static Room reserve(const InFlight& entry) {
    Map one;
    one.emplace(0, entry);
    return Room(one.extract(one.begin()));
  }
  // Once it is: `transfer` as the tier answered it.
  void enter(Room room, const tiers::Transfer& transfer) noexcept {
    room.node_.key() = transfer.id;
    room.node_.mapped().if_changed = transfer.if_changed;
    room.node_.mapped().done = transfer.done;
    map_.insert(std::move(room.node_));
  }

  bool empty() const { return map_.empty(); }
  std::size_t size() const { return map_.size(); }
  bool contains(std::uint64_t id) const { return map_.contains(id); }
  InFlight& at(std::uint64_t id) { return map_.at(id); }
  auto find(std::uint64_t id) { return map_.find(id); }
  auto find(std::uint64_t id) const { return map_.find(id); }
  void erase(Map::iterator entry) { map_.erase(entry); }
  auto begin() const { return map_.begin(); }
  auto end() const { return map_.end(); }
  auto end() { return map_.end(); }

 private:
  Map map_;  // by transfer
};

}  // namespace vmem::migration
