#include "cluster/registry/registry_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

std::size_t bytes_of(const Record& record) { return record.key.size() + record.value.size(); }

}  // namespace

RegistryState::RegistryState(const Clock& clock, const RegistryImage& image, const RegistryLimits& limits)
    : clock_(clock), limits_(limits), revision_(image.revision), last_lease_(std::int64_t(image.last_lease)) {
  for (const Record& record : image.records) {
    bytes_ += bytes_of(record);
    records_.emplace(record.key, record);
  }
  for (const RegistryImage::Lease& lease : image.leases)
    leases_[lease.id] = {.seconds = lease.seconds, .ends_us = clock.now_us() + lease.seconds * kSecondUs};
}

RegistryImage RegistryState::image() const {
  RegistryImage image{.records = {}, .leases = {}, .revision = revision_, .last_lease = LeaseId{last_lease_}};
  for (const auto& [key, record] : records_) image.records.push_back(record);
  for (const auto& [lease, terms] : leases_) image.leases.push_back({.id = lease, .seconds = terms.seconds});
  return image;
}

std::uint64_t RegistryState::next_expiry_us() const noexcept {
  std::uint64_t next_us = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [lease, terms] : leases_) next_us = std::min(next_us, terms.ends_us);
  return next_us;
}

Reply RegistryState::apply(RequestId id, const RegistryRequest& request) {
  expire();
  Reply reply{.request = id, .revision = {}, .what = {}};
  if (const Status checked = check_request(request); !checked) {
    reply.what = checked.error();
    return reply;
  }
  reply.what = std::visit([this](const auto& each) { return carry_out(each); }, request);
  if (!std::holds_alternative<Error>(reply.what) && !std::holds_alternative<Ended>(reply.what))
    reply.revision = revision_;
  return reply;
}

void RegistryState::expire() {
  const std::uint64_t now_us = clock_.now_us();
  for (auto each = leases_.begin(); each != leases_.end();) {
    const auto [lease, terms] = *each++;
    if (terms.ends_us <= now_us) end(lease);
  }
}

RegistryState::Outcome RegistryState::carry_out(const ReadPrefix& read) const {
  Read result;
  for (auto each = records_.lower_bound(read.prefix); each != records_.end(); ++each) {
    if (!each->first.starts_with(read.prefix)) break;
    result.records.push_back(each->second);
  }
  return result;
}

RegistryState::Outcome RegistryState::carry_out(const Commit& commit) {
  if (!std::ranges::all_of(commit.conditions, [this](const Condition& each) { return holds(each); }))
    return Committed{.done = false};
  if (const Status checked = check_leases(commit); !checked) return checked.error();
  if (const Status checked = check_room(commit); !checked) return checked.error();
  bool changed = false;
  for (const Edit& each : commit.edits) changed |= make(each, next_revision());
  if (changed) {
    revision_ = next_revision();
    ++changes_;
  }
  return Committed{.done = true};
}

RegistryState::Outcome RegistryState::carry_out(const GrantLease& grant) {
  if (grant.seconds > limits_.lease_seconds)
    return Error{
        VMEM_ERROR_INVALID_VALUE, 0,
        fmt::format("a lease of {} s: this registry grants at most {} s", grant.seconds, limits_.lease_seconds)};
  if (leases_.size() >= limits_.leases)
    return Error{VMEM_ERROR_OUT_OF_MEMORY, 0,
                 fmt::format("no lease is left of {}: end some, or wait until they end", limits_.leases)};
  ++changes_;
  const LeaseId lease{++last_lease_};
  leases_[lease] = {.seconds = grant.seconds, .ends_us = clock_.now_us() + grant.seconds * kSecondUs};
  return Granted{.lease = lease, .seconds = grant.seconds};
}

RegistryState::Outcome RegistryState::carry_out(const RenewLease& renew) {
  const auto found = leases_.find(renew.lease);
  if (found == leases_.end()) return Renewed{.seconds = 0};
  found->second.ends_us = clock_.now_us() + found->second.seconds * kSecondUs;
  return Renewed{.seconds = found->second.seconds};
}

RegistryState::Outcome RegistryState::carry_out(const EndLease& request) {
  if (leases_.contains(request.lease)) end(request.lease);
  return Ended{};
}

bool RegistryState::holds(const Condition& condition) const {
  const auto found = records_.find(condition.key);
  return condition.modified == (found == records_.end() ? Revision{} : found->second.modified);
}

Status RegistryState::check_leases(const Commit& commit) const {
  for (const Edit& each : commit.edits) {
    if (!each.value || each.lease == LeaseId{} || leases_.contains(each.lease)) continue;
    return fail(VMEM_ERROR_INVALID_VALUE,
                fmt::format("'{}' cannot be put under lease {}, which has ended; grant another", printable(each.key),
                            std::int64_t(each.lease)));
  }
  return {};
}

Status RegistryState::check_room(const Commit& commit) const {
  std::size_t records = records_.size(), bytes = bytes_;
  for (const Edit& each : commit.edits) {
    if (const auto old = records_.find(each.key); old != records_.end()) {
      --records;
      bytes -= bytes_of(old->second);
    }
    if (!each.value) continue;
    ++records;
    bytes += each.key.size() + each.value->size();
  }
  // What frees memory is done even if too much remains.
  if (records <= std::max(limits_.records, records_.size()) && bytes <= std::max(limits_.bytes, bytes_)) return {};
  return fail(VMEM_ERROR_OUT_OF_MEMORY,
              fmt::format("a commit that leaves {} records of {} bytes: this registry holds at most {} of {} bytes for "
                          "a cluster; erase some",
                          records, bytes, limits_.records, limits_.bytes));
}

// Returns whether there was anything to change.
bool RegistryState::make(const Edit& edit, Revision revision) {
  if (const auto old = records_.find(edit.key); old != records_.end()) {
    bytes_ -= bytes_of(old->second);
    if (!edit.value) return records_.erase(old), true;
  }
  if (!edit.value) return false;
  Record& record = records_[edit.key];
  record = {.key = edit.key, .value = *edit.value, .modified = revision, .lease = edit.lease};
  bytes_ += bytes_of(record);
  return true;
}

// REQUIRES: there is such a lease.
void RegistryState::end(LeaseId lease) {
  leases_.erase(lease);
  ++changes_;
  const auto drop = [this, lease](const auto& record) {
    if (record.second.lease != lease) return false;
    bytes_ -= bytes_of(record.second);
    return true;
  };
  if (std::erase_if(records_, drop) != 0) revision_ = next_revision();
}

}  // namespace vmem::cluster
