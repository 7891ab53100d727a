#include "rdma/lending/memory_service/lease_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <random>
#include <utility>

#include "base/log.hpp"
#include "base/sizes.hpp"

namespace vmem::rdma {
namespace {

using pagetable::kGranuleBytes;
using wire::Medium;

std::uint64_t number(NodeId id) { return static_cast<std::uint64_t>(id); }

// A random start keeps lease ids of different lenders, and of earlier lives of one, distinct.
std::uint64_t random_start() {
  std::random_device source;
  return (std::uint64_t{source()} << 32 | source()) & ~std::uint64_t{0xffff};
}

}  // namespace

LeaseBook::LeaseBook(const ServiceConfig& config, Parts parts)
    : config_(config), parts_(parts), room_(0, config.lendable_bytes()), last_id_(random_start()) {}

LeaseRef LeaseBook::find(NodeId client) const {
  const auto found = leases_.find(client);
  return found == leases_.end() ? nullptr : found->second;
}

// ---- granting ----

std::uint64_t LeaseBook::share(std::uint64_t asked, std::uint64_t there) const {
  return std::min({asked, there, config_.client_bytes}) / kGranuleBytes * kGranuleBytes;
}

// Of a tier: 0 while leases cover more than it still offers.
std::uint64_t LeaseBook::free_bytes(Medium medium) const {
  if (medium == Medium::memory) return room_.free_bytes();
  const std::uint64_t there = config_.budget_bytes(medium);
  return there - std::min(there, parts_.statistics.lent[medium]);
}

// What leases could cover besides, had the medium all that it had at the start. A lease that is
// granted while the owner wants HBM back gets it later; it gets no room that other leases had.
std::uint64_t LeaseBook::free_range(Medium medium) const {
  if (medium == Medium::memory) return free_bytes(medium);
  std::uint64_t taken = 0;
  for (const LeaseRef& lease : all()) taken += lease->quota(medium).granted;
  const std::uint64_t capacity = parts_.store.capacity(medium);
  return capacity - std::min(capacity, taken);
}

bool LeaseBook::may_grow(const wire::Ask& ask, const Lease* has) const {
  if (wiping_ == 0 && ended_.empty()) return false;
  return std::ranges::any_of(wire::kMedia, [&](Medium medium) {
    const std::uint64_t asked = ask.bytes[medium], there = has == nullptr ? 0 : has->quota(medium).bytes;
    return share(asked, there + free_bytes(medium)) < share(asked, config_.budget_bytes(medium));
  });
}

LeaseRef LeaseBook::grant(NodeIdentity client, const std::string& tenant, const wire::Ask& ask, Form form) {
  auto lease = std::make_shared<Lease>();
  lease->client = client;
  lease->tenant = tenant;
  lease->resizable = form == Form::resizable;
  if (lease->resizable) {
    grow_memory(*lease, share(ask.bytes.memory, free_bytes(Medium::memory)));
  } else if (const std::uint64_t bytes = share(ask.bytes.memory, room_.largest_bytes()); bytes != 0) {
    lease->base = *room_.take(bytes);
    lease->memory.add({lease->base, bytes});
  }
  lease->quota(Medium::memory).granted = lease->memory.bytes();
  set_quota(*lease, Medium::memory, lease->memory.bytes());
  for (const Medium medium : kStaged) resize_staged(*lease, medium, ask.bytes[medium], 0);
  const wire::MediumBytes granted = lease->usable();
  if (granted.sum() == 0 && (ask.bytes.sum() != 0 || !lease->resizable)) return nullptr;
  lease->id = ++last_id_;
  leases_[client.id] = lease;
  if (const auto times = leased_.next(); times.logged)
    VMEM_LOG_INFO("node {} has {} of memory, {} on disks and {} of HBM ({} leases so far)", number(client.id),
                  format_bytes(granted.memory), format_bytes(granted.disk), format_bytes(granted.hbm), times.count);
  return lease;
}

// Prefers room behind what the lease has. Leases begin far apart, so that each finds such room.
void LeaseBook::grow_memory(Lease& lease, std::uint64_t bytes) {
  const auto take = [&](Extent extent) {
    room_.take_at(extent);
    lease.memory.add(extent);
    bytes -= extent.bytes;
  };
  for (const Extent& each : lease.memory.extents().all())
    take({each.end(), std::min(bytes, room_.bytes_from(each.end()))});
  while (bytes != 0 && lease.memory.extents().count() < wire::kMostExtents) {
    const Extent free = largest_free();
    if (free.bytes == 0) return;
    const std::uint64_t most = std::min(bytes, free.bytes);
    const std::uint64_t before = free.first == 0 ? 0 : (free.bytes - most) / 2 / kGranuleBytes * kGranuleBytes;
    take({free.first + before, most});
  }
}

Extent LeaseBook::largest_free() const {
  const std::vector<Extent> all = room_.all();
  return all.empty() ? Extent{} : *std::ranges::max_element(all, {}, &Extent::bytes);
}

void LeaseBook::resize(Lease& lease, const wire::Ask& ask, std::uint64_t sequence) {
  for (const Extent& each : ask.returned) take_back(lease, each, sequence);
  const std::uint64_t has = lease.memory.bytes();
  const std::uint64_t wanted = share(ask.bytes.memory, has + free_bytes(Medium::memory));
  if (wanted > has) grow_memory(lease, wanted - has);
  lease.quota(Medium::memory).granted = lease.memory.bytes();
  set_quota(lease, Medium::memory, lease.memory.bytes());
  for (const Medium medium : kStaged) resize_staged(lease, medium, ask.bytes[medium], sequence);
}

void LeaseBook::resize_staged(Lease& lease, Medium medium, std::uint64_t asked, std::uint64_t sequence) {
  Quota& quota = lease.quota(medium);
  const std::uint64_t before = std::exchange(quota.granted, 0), had = quota.bytes;
  const std::uint64_t offset = wire::first_offset(medium);
  quota.granted = share(asked, free_range(medium));
  if (quota.granted < before)
    quota.granted = parts_.store.erase_released(lease, offset + quota.granted, offset + before, sequence) - offset;
  set_quota(lease, medium, 0);
  set_quota(lease, medium, std::min(quota.granted, std::max(had, share(quota.granted, free_bytes(medium)))));
}

// What is refused the borrower sees in the answer, and returns again: of one extent with pages in
// use, the next one may be a hole too many.
void LeaseBook::take_back(Lease& lease, Extent extent, std::uint64_t sequence) {
  const std::uint64_t first = extent.first - lease.base;
  if (!lease.memory.contains(extent)) return;
  Extents left = lease.memory.extents();
  left.take_at(extent);
  if (left.count() > wire::kMostExtents ||
      parts_.store.erase_released(lease, first, first + extent.bytes, sequence) != first)
    return;
  wipe(lease.memory.remove(extent), {extent});
}

// Memory that is free once it is wiped.
std::uint64_t LeaseBook::coming_bytes() const {
  std::uint64_t bytes = wiping_bytes_;
  for (const LeaseRef& lease : ended_) bytes += lease->memory.bytes();
  return bytes;
}

std::uint64_t LeaseBook::room(const Lease& lease, Medium medium) const {
  const Quota& quota = lease.quota(medium);
  const std::uint64_t most = config_.client_bytes - std::min(config_.client_bytes, quota.granted);
  std::uint64_t there = std::min(free_range(medium), free_bytes(medium));
  if (medium == Medium::memory) there += coming_bytes();
  if (medium == Medium::memory && lease.memory.extents().count() >= wire::kMostExtents) {
    there = 0;
    for (const Extent& each : lease.memory.extents().all()) there += room_.bytes_from(each.end());
  }
  return std::min(most, there) / kGranuleBytes * kGranuleBytes;
}

wire::Lent LeaseBook::lent(const Lease& lease) const {
  wire::Lent lent{.lease = lease.id, .bytes = lease.usable(), .nodes = static_cast<std::uint32_t>(leases_.size())};
  for (const Medium medium : wire::kMedia) lent.room[medium] = room(lease, medium);
  if (lease.resizable) lent.memory = lease.memory.extents().all();
  name_holder(lent, &lease);
  return lent;
}

wire::Lent LeaseBook::full() const {
  wire::Lent lent{.answer = wire::Answer::full, .nodes = static_cast<std::uint32_t>(leases_.size())};
  name_holder(lent, nullptr);
  return lent;
}

// Prefers disconnected nodes, then large leases.
void LeaseBook::name_holder(wire::Lent& lent, const Lease* except) const {
  for (const Medium medium : wire::kMedia) lent.lendable_bytes += config_.budget_bytes(medium);
  lent.leased_bytes = parts_.statistics.lent.sum();
  const Lease* most = nullptr;
  const auto rank = [](const Lease& lease) { return std::pair(!lease.is_connected(), lease.usable().sum()); };
  for (const auto& [client, lease] : leases_) {
    if (lease.get() == except || (most != nullptr && rank(*lease) <= rank(*most))) continue;
    most = lease.get();
  }
  if (most == nullptr) return;
  lent.holder = number(most->client.id);
  lent.holder_bytes = most->usable().sum();
  if (most->is_connected()) return;
  const std::uint64_t gone_for = config_.clock->now_us() - most->gone_us;
  lent.holder_left_us = std::max<std::uint64_t>(1, config_.grace_us - std::min(config_.grace_us, gone_for));
}

// ---- ends ----

void LeaseBook::disconnected(NodeId client, PeerId peer) {
  const LeaseRef lease = find(client);
  if (!lease || lease->peer != peer) return;
  lease->peer = {};
  lease->gone_us = config_.clock->now_us();
}

void LeaseBook::end(NodeId client) {
  auto lease = leases_.extract(client);
  ended_.push_back(std::move(lease.mapped()));
  parts_.replies.forget(client);
  parts_.dead.forget(client);
}

bool LeaseBook::expire() {
  const std::uint64_t now = config_.clock->now_us();
  std::vector<NodeId> over;
  for (const auto& [client, lease] : leases_) {
    if (!lease->is_connected() && now - lease->gone_us > config_.grace_us) over.push_back(client);
  }
  for (const NodeId client : over) {
    if (const auto times = lapsed_.next(); times.logged)
      VMEM_LOG_INFO("node {} did not come back; its pages are dropped ({} such nodes)", number(client), times.count);
    end(client);
  }
  return !over.empty();
}

bool LeaseBook::wipe_ended() {
  bool did = false;
  for (auto each = ended_.begin(); each != ended_.end();) {
    const LeaseRef lease = *each;
    if (lease->busy != 0) {
      ++each;
      continue;
    }
    did = true;
    each = ended_.erase(each);
    parts_.store.erase_all(*lease);
    std::vector<Extent> dirty;
    const std::vector<Extent> freed = lease->memory.extents().all();
    for (const Extent& extent : freed) std::ranges::copy(lease->memory.remove(extent), std::back_inserter(dirty));
    for (const Medium medium : wire::kMedia) set_quota(*lease, medium, 0);
    wipe(std::move(dirty), freed);
  }
  return did;
}

void LeaseBook::wipe(std::vector<Extent> dirty, std::vector<Extent> freed) {
  ++wiping_;
  for (const Extent& each : freed) wiping_bytes_ += each.bytes;
  // Cannot throw, so how it ended says nothing.
  parts_.workers.post(
      [memory = config_.memory, dirty = std::move(dirty)](std::uint32_t) {
        for (const Extent& each : dirty) std::memset(memory.subspan(each.first).data(), 0, each.bytes);
      },
      [this, freed = std::move(freed)](tiers::Workers::Ended) {
        --wiping_;
        for (const Extent& each : freed) {
          room_.give_back(each);
          wiping_bytes_ -= each.bytes;
        }
      });
}

// ---- disks and HBM ----

std::vector<LeaseRef> LeaseBook::all() const {
  std::vector<LeaseRef> leases(ended_.begin(), ended_.end());
  for (const auto& [client, lease] : leases_) leases.push_back(lease);
  return leases;
}

void LeaseBook::set_quota(Lease& lease, Medium medium, std::uint64_t bytes) {
  std::uint64_t& lent = parts_.statistics.lent[medium];
  lent = lent - lease.quota(medium).bytes + bytes;
  lease.quota(medium).bytes = bytes;
}

bool LeaseBook::follow_tiers() {
  bool did = false;
  for (const Medium medium : kStaged) did |= follow(medium);
  return did;
}

bool LeaseBook::follow(Medium medium) {
  const std::uint64_t there = config_.budget_bytes(medium), lent = parts_.statistics.lent[medium];
  if (there >= lent) return extend(medium, there);
  if (medium == Medium::disk) {
    VMEM_LOG_WARN("a disk failed: of {} that are lent of disks, {} are left", format_bytes(lent), format_bytes(there));
  } else {
    VMEM_LOG_INFO("of {} of HBM that are lent, {} may stay; nodes are asked to move the rest", format_bytes(lent),
                  format_bytes(there));
  }
  shrink(medium, there);
  return true;
}

// Every lease shrinks in proportion, because pages of all leases lie in all parts of the medium.
// Stored pages stay until released.
void LeaseBook::shrink(Medium medium, std::uint64_t there) {
  const double left = static_cast<double>(there) / static_cast<double>(parts_.statistics.lent[medium]);
  for (const LeaseRef& lease : all()) {
    const auto bytes = static_cast<std::uint64_t>(static_cast<double>(lease->quota(medium).bytes) * left);
    set_quota(*lease, medium, bytes / kGranuleBytes * kGranuleBytes);
  }
  for (const auto& [client, lease] : leases_) tell(*lease);
}

// Leases that shrank get their room again, in the order of their nodes.
bool LeaseBook::extend(Medium medium, std::uint64_t there) {
  bool did = false;
  for (const auto& [client, lease] : leases_) {
    const Quota& quota = lease->quota(medium);
    const std::uint64_t more = std::min(quota.granted - quota.bytes, there - parts_.statistics.lent[medium]);
    if (more < kGranuleBytes) continue;
    set_quota(*lease, medium, quota.bytes + more / kGranuleBytes * kGranuleBytes);
    tell(*lease);
    did = true;
  }
  return did;
}

// A disconnected borrower asks when it reconnects.
void LeaseBook::tell(const Lease& lease) {
  if (!lease.is_connected()) return;
  const wire::RequestId nothing{number(lease.client.id), Epoch{static_cast<std::uint64_t>(lease.client.incarnation)},
                                wire::kUnasked};
  parts_.replies.send(lease.peer, nothing, lent(lease));
}

}  // namespace vmem::rdma
