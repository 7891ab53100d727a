#include "rdma/lending/remote_tier/lent_room.hpp"

#include <algorithm>
#include <ranges>

namespace vmem::rdma {

using pagetable::kGranuleBytes;
using wire::Medium;

namespace {

// Media of tiers: their usable part changes unasked.
constexpr std::array kRevised = {Medium::disk, Medium::hbm};

struct Removable {
  Extent free;
  bool splits = false;        // in the middle of what is leased
  bool from_its_end = false;  // a part of it
};

// First what splits no extent, from the end of the memory on, then the largest.
std::vector<Removable> removable(const LentPart& memory) {
  std::vector<Removable> all;
  for (const Extent& free : memory.room.all() | std::views::reverse) {
    const bool at_begin = free.first == 0 || memory.leased.bytes_from(free.first - 1) == 0;
    const bool at_end = memory.leased.bytes_from(free.end()) == 0;
    all.push_back({.free = free, .splits = !at_begin && !at_end, .from_its_end = at_end || !at_begin});
  }
  std::ranges::stable_sort(all, [](const Removable& a, const Removable& b) {
    return a.splits != b.splits ? b.splits : a.splits && a.free.bytes > b.free.bytes;
  });
  return all;
}

}  // namespace

wire::MediumBytes LentRoom::usable() const {
  wire::MediumBytes all;
  for (const Medium medium : wire::kMedia) all[medium] = part(medium).usable;
  return all;
}

wire::MediumBytes LentRoom::leased() const {
  wire::MediumBytes all;
  for (const Medium medium : wire::kMedia) all[medium] = part(medium).leased.free_bytes();
  return all;
}

wire::MediumBytes LentRoom::obtainable() const {
  wire::MediumBytes all;
  for (const Medium medium : wire::kMedia) all[medium] = part(medium).obtainable;
  return all;
}

std::uint64_t LentRoom::used() const {
  std::uint64_t all = 0;
  for (const LentPart& each : parts) all += each.used();
  return all;
}

std::uint64_t LentRoom::free_bytes() const {
  std::uint64_t all = 0;
  for (const LentPart& each : parts) all += each.free_bytes();
  return all;
}

std::uint64_t LentRoom::largest() const { return std::ranges::max(parts | std::views::transform(&LentPart::largest)); }

void LentRoom::add_places(std::vector<std::uint64_t>& places) const {
  for (const Medium medium : wire::kMedia) {
    const LentPart& each = part(medium);
    const std::uint64_t bytes = budget(each);
    if (bytes == 0) continue;
    if (medium != Medium::memory || draining) {
      places.push_back(bytes);
    } else {
      for (const Extent& extent : each.leased.all()) places.push_back(extent.bytes);
    }
  }
}

// Of media alike memory comes first: nothing has to be staged on the way there.
std::optional<Medium> LentRoom::medium_for(std::uint64_t bytes) const {
  std::optional<Medium> best;
  for (const Medium medium : {Medium::memory, Medium::hbm, Medium::disk}) {
    if (part(medium).largest() >= bytes && (!best || level(medium) < level(*best))) best = medium;
  }
  return best;
}

void LentRoom::end() {
  lease = number = 0;
  ready = disk_failed = may_lend = false;
  parts = {};
}

void LentRoom::begin(const wire::Lent& lent, std::uint64_t room_number) {
  end();
  lease = lent.lease;
  number = room_number;
  (void)follow(lent);
}

bool LentRoom::follow(const wire::Lent& lent) {
  LentPart& memory = part(Medium::memory);
  Extents now;
  for (const Extent& each : lent.extents()) now.give_back(each);
  if (!now.contains_all(memory.leased)) return false;
  for (const Extent& each : now.all())
    for (const Extent& added : memory.leased.missing_of(each)) memory.room.give_back(added);
  memory.usable = now.free_bytes();
  memory.leased = std::move(now);
  follow_tiers(lent.bytes);
  for (const Medium medium : wire::kMedia) part(medium).obtainable = lent.room[medium];
  may_lend = lent.lendable_bytes != 0;
  return true;
}

void LentRoom::limit(std::uint64_t bytes) {
  for (LentPart& each : parts) {
    const std::uint64_t most = bytes - std::min(bytes, each.usable);
    each.obtainable = std::min(each.obtainable, most) / kGranuleBytes * kGranuleBytes;
  }
}

// Nothing but a failure takes part of a disk, and this node itself (take_out).
void LentRoom::follow_tiers(const wire::MediumBytes& usable) {
  if (usable.disk != part(Medium::disk).usable) disk_failed = usable.disk < part(Medium::disk).usable;
  for (const Medium medium : kRevised) {
    LentPart& each = part(medium);
    const std::uint64_t had = each.leased.free_bytes();
    if (usable[medium] > had) {
      const Extent added{wire::first_offset(medium) + had, usable[medium] - had};
      each.room.give_back(added);
      each.leased.give_back(added);
    }
    each.usable = usable[medium];
  }
}

std::vector<Extent> LentRoom::take_out(const wire::MediumBytes& wanted) {
  for (const Medium medium : kRevised) {
    LentPart& each = part(medium);
    const std::uint64_t had = each.leased.free_bytes(), end = wire::first_offset(medium) + had;
    const auto free = each.room.all();
    if (free.empty() || free.back().end() != end || wanted[medium] >= had) continue;
    const std::uint64_t bytes = std::min(had - wanted[medium], free.back().bytes);
    each.room.take_at({end - bytes, bytes});
    each.leased.take_at({end - bytes, bytes});
    each.usable = std::min(each.usable, had - bytes);
  }
  LentPart& memory = part(Medium::memory);
  std::uint64_t bytes = memory.usable - std::min(memory.usable, wanted.memory);
  std::vector<Extent> taken;
  for (const Removable& each : removable(memory)) {
    if (bytes == 0 || taken.size() == wire::kMostExtents) break;
    Extent extent = each.free;
    if (extent.bytes > bytes) extent = {each.from_its_end ? extent.end() - bytes : extent.first, bytes};
    memory.leased.take_at(extent);
    if (memory.leased.count() > wire::kMostExtents) {
      memory.leased.give_back(extent);
      continue;
    }
    memory.room.take_at(extent);
    taken.push_back(extent);
    bytes -= extent.bytes;
  }
  memory.usable = memory.leased.free_bytes();
  return taken;
}

}  // namespace vmem::rdma
