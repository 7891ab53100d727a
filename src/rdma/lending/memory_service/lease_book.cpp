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

// 0 while leases cover more than the disk still offers.
std::uint64_t LeaseBook::free_disk_bytes() const {
  const std::uint64_t there = config_.disk_budget_bytes();
  return there - std::min(there, parts_.statistics.disk_lent_bytes);
}

bool LeaseBook::may_grow(const wire::Ask& ask) const {
  if (wiping_ == 0 && ended_.empty()) return false;
  return share(ask.memory_bytes, room_.largest_bytes()) < share(ask.memory_bytes, config_.lendable_bytes()) ||
         share(ask.disk_bytes, free_disk_bytes()) < share(ask.disk_bytes, config_.disk_budget_bytes());
}

LeaseRef LeaseBook::grant(NodeIdentity client, const std::string& tenant, const wire::Ask& ask) {
  const std::uint64_t bytes = share(ask.memory_bytes, room_.largest_bytes());
  const std::uint64_t disk_bytes = share(ask.disk_bytes, free_disk_bytes());
  if (bytes + disk_bytes == 0) return nullptr;
  auto lease = std::make_shared<Lease>();
  lease->id = ++last_id_;
  lease->client = client;
  lease->tenant = tenant;
  lease->bytes = bytes;
  lease->disk_range = lease->disk_bytes = disk_bytes;
  lease->first = room_.take(bytes).value_or(0);
  parts_.statistics.lent_bytes += bytes;
  parts_.statistics.disk_lent_bytes += disk_bytes;
  leases_[client.id] = lease;
  if (const auto times = leased_.next(); times.logged)
    VMEM_LOG_INFO("node {} has {} of memory and {} on disks ({} leases so far)", number(client.id), format_bytes(bytes),
                  format_bytes(disk_bytes), times.count);
  return lease;
}

// Prefers disconnected nodes, then large leases.
wire::Lent LeaseBook::full() const {
  wire::Lent lent{.answer = wire::Answer::full, .nodes = static_cast<std::uint32_t>(leases_.size())};
  lent.lendable_bytes = config_.lendable_bytes() + config_.disk_budget_bytes();
  lent.leased_bytes = parts_.statistics.lent_bytes + parts_.statistics.disk_lent_bytes;
  const auto rank = [](const auto& each) {
    return std::pair(!each.second->is_connected(), each.second->bytes + each.second->disk_bytes);
  };
  const auto most = std::ranges::max_element(leases_, {}, rank);
  if (most == leases_.end()) return lent;
  const Lease& lease = *most->second;
  lent.holder = number(most->first);
  lent.holder_bytes = lease.bytes + lease.disk_bytes;
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
    parts_.statistics.disk_lent_bytes -= lease->disk_bytes;
    const Bytes dirty = config_.memory.subspan(lease->first, lease->touched);
    ++wiping_;
    // Cannot throw, so how it ended says nothing.
    parts_.workers.post([dirty](std::uint32_t) { std::memset(dirty.data(), 0, dirty.size()); },
                        [this, lease](tiers::Workers::Ended) {
                          --wiping_;
                          room_.give_back(lease->first, lease->bytes);
                          parts_.statistics.lent_bytes -= lease->bytes;
                        });
  }
  return did;
}

// ---- the disk ----

// A directory that failed takes room with it. Every lease shrinks in proportion, because pages of
// all leases lie in all directories. Stored pages stay until released.
bool LeaseBook::follow_disk() {
  const std::uint64_t lent = parts_.statistics.disk_lent_bytes;
  const std::uint64_t there = config_.disk_budget_bytes();
  if (there >= lent) return false;
  VMEM_LOG_WARN("a disk failed: of {} that are lent of disks, {} are left", format_bytes(lent), format_bytes(there));
  const auto left = [&](const Lease& lease) {
    return static_cast<std::uint64_t>(static_cast<double>(lease.disk_bytes) / double(lent) * double(there));
  };
  for (const LeaseRef& lease : ended_) shrink(*lease, left(*lease));
  for (const auto& [client, lease] : leases_) {
    shrink(*lease, left(*lease));
    tell(*lease);
  }
  return true;
}

void LeaseBook::shrink(Lease& lease, std::uint64_t disk_bytes) {
  const std::uint64_t kept = std::min(lease.disk_bytes, disk_bytes / kGranuleBytes * kGranuleBytes);
  parts_.statistics.disk_lent_bytes -= lease.disk_bytes - kept;
  lease.disk_bytes = kept;
}

// A disconnected borrower asks when it reconnects.
void LeaseBook::tell(const Lease& lease) {
  if (!lease.is_connected()) return;
  const wire::Lent lent{.lease = lease.id, .memory_bytes = lease.bytes, .disk_bytes = lease.disk_bytes};
  const wire::RequestId nothing{number(lease.client.id), Epoch{static_cast<std::uint64_t>(lease.client.incarnation)},
                                wire::kUnasked};
  parts_.replies.send(lease.peer, nothing, wire::Kind::allocated, wire::body_of(lent));
}

}  // namespace vmem::rdma
