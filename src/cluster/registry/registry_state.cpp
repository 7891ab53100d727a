#include "cluster/registry/registry_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/printable.hpp"
#include "cluster/registry/request_check.hpp"

namespace vmem::cluster {
namespace {

constexpr std::uint64_t kSecondUs = 1'000'000;

}  // namespace

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
  bool changed = false;
  for (const Edit& each : commit.edits) changed |= make(each, next_revision());
  if (changed) revision_ = next_revision();
  return Committed{.done = true};
}

RegistryState::Outcome RegistryState::carry_out(const GrantLease& grant) {
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

// Returns whether there was anything to change.
bool RegistryState::make(const Edit& edit, Revision revision) {
  if (!edit.value) return records_.erase(edit.key) != 0;
  records_[edit.key] = {.key = edit.key, .value = *edit.value, .modified = revision, .lease = edit.lease};
  return true;
}

// REQUIRES: there is such a lease.
void RegistryState::end(LeaseId lease) {
  leases_.erase(lease);
  const auto under = [lease](const auto& record) { return record.second.lease == lease; };
  if (std::erase_if(records_, under) != 0) revision_ = next_revision();
}

}  // namespace vmem::cluster
