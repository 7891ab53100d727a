#include "rdma/lending/remote_tier/copy_placer.hpp"

#include <fmt/format.h>

#include <numeric>
#include <ranges>
#include <tuple>
#include <utility>

namespace vmem::rdma {
namespace {

// Bytes of pages that fit in these rooms. Two copies lie on two nodes. If only one node lends,
// pages have one copy, as in allocate(). A node that is full still counts.
std::uint64_t storable(std::span<const std::uint64_t> rooms, std::uint32_t replicas) {
  const std::uint64_t sum = std::accumulate(rooms.begin(), rooms.end(), std::uint64_t{0});
  const std::uint64_t largest = rooms.empty() ? 0 : std::ranges::max(rooms);
  if (replicas == 1 || rooms.size() == 1) return sum;
  return std::min(sum / 2, sum - largest);
}

}  // namespace

using tiers::Grant;
using tiers::SlotGrant;
using tiers::SlotId;

std::uint32_t CopyPlacer::add_node(const std::string& address, FailureDomain domain) {
  const std::lock_guard lock(mutex_);
  peers_.push_back(address);
  domains_.push_back(std::move(domain));
  rooms_.emplace_back();
  return static_cast<std::uint32_t>(peers_.size() - 1);
}

// ---- slots ----

tiers::TierUsage CopyPlacer::usage() const {
  const std::lock_guard lock(mutex_);
  return usage_now();
}

tiers::TierUsage CopyPlacer::usage_now() const {
  std::vector<std::uint64_t> all, ready;
  for (const Room& room : rooms_) {
    std::uint64_t bytes = 0;
    for (const LentPart& part : room.parts) bytes += room.budget(part);
    if (bytes != 0 || room.takes_pages()) all.push_back(bytes);
    if (room.takes_pages()) ready.push_back(room.free_bytes());
  }
  return {storable(all, replicas_), used_bytes_, storable(ready, replicas_)};
}

// Each node's media; with two replicas, the budget as one place.
std::vector<std::uint64_t> CopyPlacer::places() const {
  const std::lock_guard lock(mutex_);
  if (replicas_ != 1) return {usage_now().budget_bytes};
  std::vector<std::uint64_t> all;
  for (const Room& room : rooms_) room.add_places(all);
  return all;
}

std::vector<std::uint64_t> CopyPlacer::obtainable_places() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::uint64_t> all, by_node;
  for (const Room& room : rooms_) {
    room.add_places(all);
    std::uint64_t bytes = 0;
    for (const LentPart& part : room.parts) {
      const std::uint64_t more = room.ready && !room.draining ? part.obtainable : 0;
      if (more != 0) all.push_back(more);
      bytes += room.budget(part) + more;
    }
    if (bytes != 0 || room.takes_pages()) by_node.push_back(bytes);
  }
  return replicas_ == 1 ? all : std::vector{storable(by_node, replicas_)};
}

// A page in transit may need room although none is left to commit to: without any, no page could
// be exchanged.
Result<SlotGrant> CopyPlacer::allocate(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  auto slot = place_all(page_bytes, &Room::takes_pages);
  if (!slot && last_resort_ == LastResort::draining_nodes) slot = place_all(page_bytes, &Room::lends);
  if (!slot) return no_room(page_bytes);
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<SlotId>(slots_.size()));
    slots_.emplace_back();
  }
  const SlotId id = free_slots_.back();
  free_slots_.pop_back();
  slots_[id] = *slot;
  slots_[id].grant = ++last_grant_;
  used_bytes_ += slot->bytes;
  return SlotGrant{Grant::granted, id};
}

// nullopt: not all copies that these nodes allow have found a place.
std::optional<CopyPlacer::Slot> CopyPlacer::place_all(std::uint64_t page_bytes, Eligible eligible) {
  const auto nodes =
      static_cast<std::uint32_t>(std::ranges::count_if(rooms_, [&](const Room& room) { return (room.*eligible)(); }));
  const std::uint32_t wanted = std::min(replicas_, nodes);
  Slot slot{.bytes = page_bytes, .grant = 0, .copies = {}};
  for (std::uint32_t i = 0; i < wanted; ++i) {
    const auto copy = place(page_bytes, slot.copies, eligible);
    if (!copy) {
      for (const CopyPlace& placed : slot.copies) give_back(placed, page_bytes);
      return std::nullopt;
    }
    slot.copies[i] = *copy;
  }
  return wanted == 0 ? std::nullopt : std::optional(slot);
}

// TIMEOUT if a disconnected node, not known to be dead, may return with room.
Result<SlotGrant> CopyPlacer::no_room(std::uint64_t page_bytes) const {
  for (std::size_t node = 0; node < rooms_.size(); ++node) {
    const Room& room = rooms_[node];
    if (room.lease == 0 || room.ready || room.draining || room.largest() < page_bytes) continue;
    return fail(VMEM_ERROR_TIMEOUT, fmt::format("the node at {} is away, and may come back with room", peers_[node]));
  }
  return SlotGrant{};
}

CopyPlaces CopyPlacer::release(SlotId id) {
  const std::lock_guard lock(mutex_);
  end_move(slots_[id]);
  const Slot slot = std::exchange(slots_[id], {});
  for (const CopyPlace& copy : slot.copies) give_back(copy, slot.bytes);
  used_bytes_ -= slot.bytes;
  free_slots_.push_back(id);
  return slot.copies;
}

bool CopyPlacer::degraded(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  const auto copies =
      std::ranges::count_if(slots_[slot].copies, [&](const CopyPlace& copy) { return is_current(copy); });
  const auto nodes = std::ranges::count_if(rooms_, &Room::takes_pages);
  return copies < std::clamp<std::ptrdiff_t>(nodes, 1, replicas_);
}

std::string CopyPlacer::where(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  std::string nodes;
  for (const CopyPlace& copy : slots_[slot].copies) {
    if (copy.lease != 0) nodes += (nodes.empty() ? "the node at " : " and the node at ") + peers_[copy.node];
  }
  return nodes;
}

// ---- copies ----

CopyPlaces CopyPlacer::copies(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return slots_[slot].copies;
}

bool CopyPlacer::is_there(const CopyPlace& copy) const {
  const std::lock_guard lock(mutex_);
  return is_current(copy);
}

bool CopyPlacer::assign_new_place(SlotId id, std::size_t copy) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[id];
  const auto found = place_beside_others(slot, copy);
  if (!found) return false;
  if (slot.leaves == slot.copies[copy]) end_move(slot);
  give_back(std::exchange(slot.copies[copy], *found), slot.bytes);
  return true;
}

std::optional<CopyPlace> CopyPlacer::place_beside_others(const Slot& slot, std::size_t copy) {
  CopyPlaces others = slot.copies;
  others[copy] = {};
  return place(slot.bytes, others);
}

// ---- repairs ----

GrantedSlot CopyPlacer::granted(SlotId slot) const {
  const std::lock_guard lock(mutex_);
  return {slot, slots_[slot].grant};
}

Repair CopyPlacer::repair(GrantedSlot granted, const ValidCopies& valid) const {
  const std::lock_guard lock(mutex_);
  const Slot& slot = slots_[granted.slot];
  if (slot.grant != granted.grant) return {};
  const auto nodes = std::ranges::count_if(rooms_, &Room::takes_pages);
  const auto wanted = std::clamp<std::ptrdiff_t>(nodes, 1, replicas_);
  std::ptrdiff_t staying = 0, connected = 0;
  // stale: missing, and takes room that it is to leave
  std::optional<std::size_t> missing, stale, leaving;
  for (std::size_t i = 0; i < replicas_; ++i) {
    const Room& room = rooms_[slot.copies[i].node];
    const bool current = is_current(slot.copies[i]);
    const bool leaves = room.draining || wanted_back(slot.copies[i]);
    if (!valid[i] || !current) {
      missing = i;
      if (current && leaves) stale = i;
    } else if (leaves) {
      leaving = i;
    } else {
      ++staying;
      connected += room.ready ? 1 : 0;
    }
  }
  const bool has_source = staying != 0 || leaving;
  if (has_source && staying < wanted) return {Repair::Kind::make, missing ? *missing : *leaving};
  if (stale) return {Repair::Kind::drop, *stale};
  if (!leaving) return {};
  return {connected >= wanted ? Repair::Kind::drop : Repair::Kind::make, *leaving};
}

std::optional<CopyPlace> CopyPlacer::reserve(GrantedSlot granted, std::size_t copy) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[granted.slot];
  const auto found = slot.grant == granted.grant ? place_beside_others(slot, copy) : std::nullopt;
  if (!found) return std::nullopt;
  end_move(slot);
  // Others need not leave in its stead.
  if (!is_current(slot.copies[copy])) return found;
  slot.leaves = slot.copies[copy];
  rooms_[slot.leaves.node].part_at(slot.leaves.offset).leaving += slot.bytes;
  return found;
}

void CopyPlacer::cancel(GrantedSlot granted, const CopyPlace& reserved, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (slots_[granted.slot].grant == granted.grant) end_move(slots_[granted.slot]);
  give_back(reserved, bytes);
}

void CopyPlacer::end_move(Slot& slot) {
  const CopyPlace left = std::exchange(slot.leaves, {});
  if (is_current(left)) rooms_[left.node].part_at(left.offset).leaving -= slot.bytes;
}

std::optional<CopyPlace> CopyPlacer::replace(GrantedSlot granted, std::size_t copy, const CopyPlace& reserved) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[granted.slot];
  if (slot.grant != granted.grant) return std::nullopt;
  end_move(slot);
  const CopyPlace old = std::exchange(slot.copies[copy], reserved);
  give_back(old, slot.bytes);
  return old;
}

// ---- places ----

int CopyPlacer::distance(std::uint32_t node, std::span<const CopyPlace> copies) const {
  const auto differ = [](const std::string& a, const std::string& b) { return !a.empty() && !b.empty() && a != b; };
  int nearest = 2;
  for (const CopyPlace& copy : copies) {
    if (!is_current(copy)) continue;
    const FailureDomain &here = domains_[node], &there = domains_[copy.node];
    nearest = std::min(nearest, differ(here.rack, there.rack) ? 2 : differ(here.host, there.host) ? 1 : 0);
  }
  return nearest;
}

// With two copies, a node that would keep more free bytes than all others together has to take one:
// those bytes would find no second node, although the budget counts them. Else prefers another
// failure domain than that of the other copy, nodes for which no stores wait, the fastest media,
// and nodes with the most free bytes.
std::optional<CopyPlace> CopyPlacer::place(std::uint64_t bytes, std::span<const CopyPlace> apart_from,
                                           Eligible eligible) {
  std::uint64_t free_bytes = 0;
  for (const Room& room : rooms_) free_bytes += (room.*eligible)() ? room.free_bytes() : 0;
  const auto rank = [&](std::uint32_t node) {
    const Room& room = rooms_[node];
    const std::uint64_t own = room.free_bytes();
    const bool needed = replicas_ != 1 && own + bytes > free_bytes / 2;
    return std::tuple(!room.draining, needed ? own : 0, distance(node, apart_from), !room.busy,
                      -std::int64_t{room.level(*room.medium_for(bytes))}, own);
  };
  std::optional<std::uint32_t> best;
  for (std::uint32_t node = 0; node < rooms_.size(); ++node) {
    const bool taken =
        std::ranges::any_of(apart_from, [&](const CopyPlace& c) { return is_current(c) && c.node == node; });
    const Room& room = rooms_[node];
    if (!(room.*eligible)() || taken || room.largest() < bytes) continue;
    if (!best || rank(node) > rank(*best)) best = node;
  }
  if (!best) return std::nullopt;
  Room& room = rooms_[*best];
  return CopyPlace{*best, room.number, room.lease, *room.part(*room.medium_for(bytes)).room.take(bytes)};
}

void CopyPlacer::give_back(const CopyPlace& copy, std::uint64_t bytes) {
  if (!is_current(copy)) return;
  rooms_[copy.node].part_at(copy.offset).room.give_back(copy.offset, bytes);
}

// ---- rooms ----

bool CopyPlacer::set_room(std::uint32_t node, const wire::Lent& lent) {
  const std::lock_guard lock(mutex_);
  Room& room = rooms_[node];
  const std::pair before(room.lease, std::pair(room.ready, room.usable()));
  if (room.lease != lent.lease) {
    room.begin(lent, ++last_room_);
  } else if (!room.follow(lent)) {
    return false;
  }
  room.ready = true;
  room.limit(borrow_bytes_);
  revision_ += before != std::pair(room.lease, std::pair(room.ready, room.usable())) ? 1 : 0;
  return true;
}

wire::MediumBytes CopyPlacer::revise(std::uint32_t node, const wire::MediumBytes& usable) {
  const std::lock_guard lock(mutex_);
  Room& room = rooms_[node];
  const wire::MediumBytes before = room.usable();
  room.follow_tiers(usable);
  revision_ += room.usable() != before ? 1 : 0;
  return before;
}

CopyPlacer::GivenUp CopyPlacer::give_up(std::uint32_t node, const wire::MediumBytes& wanted,
                                        const std::function<bool()>& surplus) {
  const std::lock_guard lock(mutex_);
  Room& room = rooms_[node];
  if (!surplus()) return {.memory = {}, .left = room.leased()};
  const wire::MediumBytes before = room.leased();
  GivenUp given{.memory = room.take_out(wanted), .left = room.leased()};
  revision_ += given.left != before ? 1 : 0;
  return given;
}

std::vector<CopyPlacer::Lendable> CopyPlacer::lendable() const {
  const std::lock_guard lock(mutex_);
  std::vector<Lendable> all;
  for (std::uint32_t node = 0; node < rooms_.size(); ++node) {
    const Room& room = rooms_[node];
    if (!room.ready || room.draining) continue;
    Lendable& each = all.emplace_back(node, room.lease, room.usable(), wire::MediumBytes{}, room.obtainable());
    for (const wire::Medium medium : wire::kMedia) each.free[medium] = room.part(medium).free_bytes();
    each.levels = room.levels;
  }
  return all;
}

void CopyPlacer::set_away(std::uint32_t node) {
  const std::lock_guard lock(mutex_);
  rooms_[node].ready = false;
}

void CopyPlacer::drop(std::uint32_t node) {
  const std::lock_guard lock(mutex_);
  rooms_[node].end();
  ++revision_;
}

void CopyPlacer::set_draining(std::uint32_t node, bool draining) {
  const std::lock_guard lock(mutex_);
  revision_ += rooms_[node].draining != draining ? 1 : 0;
  rooms_[node].draining = draining;
}

void CopyPlacer::set_busy(std::uint32_t node, bool busy) {
  const std::lock_guard lock(mutex_);
  rooms_[node].busy = busy;
}

void CopyPlacer::set_level(std::uint32_t node, wire::Medium medium, std::uint32_t level) {
  const std::lock_guard lock(mutex_);
  rooms_[node].levels[static_cast<std::size_t>(medium)] = level;
}

std::uint32_t CopyPlacer::nodes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(peers_.size());
}

std::string CopyPlacer::address(std::uint32_t node) const {
  const std::lock_guard lock(mutex_);
  return peers_[node];
}

CopyPlacer::NodeRoom CopyPlacer::room(std::uint32_t node) const {
  const std::lock_guard lock(mutex_);
  const Room& room = rooms_[node];
  const LentPart& hbm = room.part(wire::Medium::hbm);
  return {.leased = room.leased(),
          .usable = room.usable(),
          .obtainable = room.obtainable(),
          .draining = room.draining,
          .disk_failed = room.disk_failed,
          .empty = room.used() == 0,
          .moves = room.draining ? room.used() != 0 : hbm.used() > hbm.usable};
}

bool CopyPlacer::is_wanted_back(const CopyPlace& copy) const {
  const std::lock_guard lock(mutex_);
  return is_current(copy) && wanted_back(copy);
}

// Of a disk that failed, nobody knows which pages are gone, and none is better off elsewhere.
bool CopyPlacer::wanted_back(const CopyPlace& copy) const {
  const LentPart& hbm = rooms_[copy.node].part(wire::Medium::hbm);
  return wire::medium_of(copy.offset) == wire::Medium::hbm && hbm.used() - hbm.leaving > hbm.usable;
}

}  // namespace vmem::rdma
