// The ledger of transfers in flight. The mover reserves an entry before it submits the transfer, so
// the ledger contains every transfer that a tier has started. Thread: the mover's.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "migration/page/page_ref.hpp"
#include "tiers/tier.hpp"

namespace vmem::migration {

// A slot of near memory: 0 is host memory, n is MoverConfig::peer_tiers[n - 1].
struct NearSlot {
  std::uint8_t near = 0;
  tiers::SlotId slot = pagetable::kNoFrame;
};

struct InFlight {
  pagetable::Region* region;
  std::uint32_t page;
  std::uint64_t bytes;
  tiers::Direction direction;
  // frame: a page in HBM copied to or from near memory (Loader); compare: see Fingerprints; spill:
  // between host memory and below; returned: see Lending; arrival, arrival_check: see DirectReads.
  enum class Kind : std::uint8_t { frame, compare, spill, returned, arrival, arrival_check };
  Kind kind = Kind::frame;
  std::uint64_t version = 0;                  // of the bytes
  std::uint64_t since_us = 0;                 // when it was submitted
  NearSlot from;                              // frame: the near slot; returned: the old slot
  std::uint32_t frame = pagetable::kNoFrame;  // arrival: not yet the page's
  std::uint32_t queue = 0;                    // of Below's tiers
  bool ahead = false;                         // as Transfer::ahead
  // As set by the tier.
  bool if_changed = false;
  CUevent done = nullptr;
};

// What all transfers of the page's bytes have in common, and their entry in the ledger.
inline tiers::Transfer transfer_of(PageRef ref, tiers::Direction direction) {
  tiers::Transfer transfer;
  transfer.page = ref.region->page_key(ref.index);
  transfer.version = ref.page().version;
  transfer.bytes = ref.bytes();
  transfer.device = ref.region->device;
  transfer.direction = direction;
  return transfer;
}
inline InFlight in_flight(PageRef ref, tiers::Direction direction, InFlight::Kind kind, std::uint64_t now_us) {
  return {.region = ref.region,
          .page = ref.index,
          .bytes = ref.bytes(),
          .direction = direction,
          .kind = kind,
          .version = ref.page().version,
          .since_us = now_us};
}

class Transfers {
  using Map = std::map<std::uint64_t, InFlight>;

 public:
  struct Room {
    Map::node_type node;
  };

  // Call before submitting the transfer. Throws std::bad_alloc.
  static Room reserve(const InFlight& entry) {
    Map one;
    one.emplace(0, entry);
    return {one.extract(one.begin())};
  }
  // Call after submitting. `transfer`: as the tier filled it in.
  void enter(Room room, const tiers::Transfer& transfer) noexcept {
    room.node.key() = transfer.id;
    room.node.mapped().if_changed = transfer.if_changed;
    room.node.mapped().done = transfer.done;
    map_.insert(std::move(room.node));
  }

  bool running(std::uint64_t id) const { return id != 0 && map_.contains(id); }
  // Null if the transfer has ended, or has no event.
  CUevent event_of(std::uint64_t id) const {
    const auto found = map_.find(id);
    return found == map_.end() ? nullptr : found->second.done;
  }
  // A transfer between the page's copy below host memory and a slot or frame.
  bool busy_below(const pagetable::Page& page) const {
    return page.spilled != nullptr && running(page.spilled->transfer);
  }
  // Includes transfers that no page waits for, such as loads whose mapping failed.
  bool any_of(const pagetable::Region& region) const {
    return std::ranges::any_of(map_, [&](const auto& each) { return each.second.region == &region; });
  }
  bool empty() const { return map_.empty(); }
  std::size_t size() const { return map_.size(); }
  InFlight& at(std::uint64_t id) { return map_.at(id); }
  const InFlight& at(std::uint64_t id) const { return map_.at(id); }
  auto find(std::uint64_t id) { return map_.find(id); }
  auto find(std::uint64_t id) const { return map_.find(id); }
  void erase(Map::iterator entry) { map_.erase(entry); }
  auto begin() const { return map_.begin(); }
  auto end() const { return map_.end(); }
  auto end() { return map_.end(); }

 private:
  Map map_;  // by transfer id
};

}  // namespace vmem::migration
