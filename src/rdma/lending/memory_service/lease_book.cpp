#include "rdma/lending/memory_service/lease_book.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
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

wire::MediumBytes budgets(const ServiceConfig& config) {
  wire::MediumBytes bytes;
  for (const Medium medium : wire::kMedia) bytes[medium] = config.budget_bytes(medium);
  return bytes;
}

}  // namespace

LeaseBook::LeaseBook(const ServiceConfig& config, Parts parts)
    : config_(config),
      parts_(parts),
      capacity_(budgets(config)),
      room_(0, config.lendable_bytes()),
      last_id_(random_start()) {}

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
  if (medium == Medium::memory) return room_.largest_bytes();
  const std::uint64_t there = config_.budget_bytes(medium);
  return there - std::min(there, parts_.statistics.lent[medium]);
}

// What leases could cover besides, had the medium all that it had at the start. A lease that is
// granted while the owner wants HBM back grows into its range later; it gets no room that other
// leases had.
std::uint64_t LeaseBook::free_range(Medium medium) const {
  if (medium == Medium::memory) return free_bytes(medium);
  std::uint64_t taken = 0;
  for (const LeaseRef& lease : all()) taken += lease->quota(medium).range;
  return capacity_[medium] - std::min(capacity_[medium], taken);
}

bool LeaseBook::may_grow(const wire::Ask& ask) const {
  if (wiping_ == 0 && ended_.empty()) return false;
  return std::ranges::any_of(wire::kMedia, [&](Medium medium) {
    const std::uint64_t asked = ask.bytes[medium];
    return share(asked, free_bytes(medium)) < share(asked, config_.budget_bytes(medium));
  });
}

LeaseRef LeaseBook::grant(NodeIdentity client, const std::string& tenant, const wire::Ask& ask) {
  auto lease = std::make_shared<Lease>();
  for (const Medium medium : wire::kMedia) {
    Quota& quota = lease->quota(medium);
    quota.range = share(ask.bytes[medium], free_range(medium));
    quota.bytes = share(quota.range, free_bytes(medium));
  }
  const wire::MediumBytes granted = lease->usable();
  if (granted.sum() == 0) return nullptr;
  lease->id = ++last_id_;
  lease->client = client;
  lease->tenant = tenant;
  lease->first = room_.take(granted.memory).value_or(0);
  for (const Medium medium : wire::kMedia) parts_.statistics.lent[medium] += granted[medium];
  leases_[client.id] = lease;
  if (const auto times = leased_.next(); times.logged)
    VMEM_LOG_INFO("node {} has {} of memory, {} on disks and {} of HBM ({} leases so far)", number(client.id),
                  format_bytes(granted.memory), format_bytes(granted.disk), format_bytes(granted.hbm), times.count);
  return lease;
}

// Prefers disconnected nodes, then large leases.
wire::Lent LeaseBook::full() const {
  wire::Lent lent{.answer = wire::Answer::full, .nodes = static_cast<std::uint32_t>(leases_.size())};
  for (const Medium medium : wire::kMedia) lent.lendable_bytes += config_.budget_bytes(medium);
  lent.leased_bytes = parts_.statistics.lent.sum();
  const auto rank = [](const auto& each) {
    return std::pair(!each.second->is_connected(), each.second->usable().sum());
  };
  const auto most = std::ranges::max_element(leases_, {}, rank);
  if (most == leases_.end()) return lent;
  const Lease& lease = *most->second;
  lent.holder = number(most->first);
  lent.holder_bytes = lease.usable().sum();
  if (!lease.is_connected()) {
    const std::uint64_t gone_for = config_.clock->now_us() - lease.gone_us;
    lent.holder_left_us = std::max<std::uint64_t>(1, config_.grace_us - std::min(config_.grace_us, gone_for));
  }
  return lent;
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
    for (const Medium medium : kStaged) set_quota(*lease, medium, 0);
    const Bytes dirty = config_.memory.subspan(lease->first, lease->touched);
    ++wiping_;
    // Cannot throw, so how it ended says nothing.
    parts_.workers.post([dirty](std::uint32_t) { std::memset(dirty.data(), 0, dirty.size()); },
                        [this, lease](tiers::Workers::Ended) {
                          --wiping_;
                          room_.give_back(lease->first, lease->quota(Medium::memory).range);
                          set_quota(*lease, Medium::memory, 0);
                        });
  }
  return did;
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
    const std::uint64_t more = std::min(quota.range - quota.bytes, there - parts_.statistics.lent[medium]);
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
  const wire::Lent lent{.lease = lease.id, .bytes = lease.usable()};
  const wire::RequestId nothing{number(lease.client.id), Epoch{static_cast<std::uint64_t>(lease.client.incarnation)},
                                wire::kUnasked};
  parts_.replies.send(lease.peer, nothing, wire::Kind::allocated, wire::body_of(lent));
}

}  // namespace vmem::rdma
