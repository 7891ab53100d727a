// A registry in plain memory, and the reference for what every registry must answer: records,
// leases and the revision. Pure but for the clock.
#pragma once

#include <map>

#include "base/clock.hpp"
#include "cluster/registry/registry.hpp"

namespace vmem::cluster {

// One thread.
class RegistryState {
 public:
  explicit RegistryState(const Clock& clock) : clock_(clock) {}

  // Carries out the request, after what has expired. Errors in the reply: INVALID_VALUE as
  // check_request, and for an edit under a lease that has ended.
  Reply apply(RequestId id, const RegistryRequest& request);
  // Ends the leases that were not renewed in time, and erases their records.
  void expire();

  Revision revision() const noexcept { return revision_; }

 private:
  struct Lease {
    std::uint32_t seconds = 0;
    std::uint64_t ends_us = 0;
  };
  using Outcome = decltype(Reply::what);
  Outcome carry_out(const ReadPrefix& read) const;
  Outcome carry_out(const Commit& commit);
  Outcome carry_out(const GrantLease& grant);
  Outcome carry_out(const RenewLease& renew);
  Outcome carry_out(const EndLease& end);

  bool holds(const Condition& condition) const;
  Status check_leases(const Commit& commit) const;
  bool make(const Edit& edit, Revision revision);
  void end(LeaseId lease);
  Revision next_revision() const noexcept { return Revision{std::int64_t(revision_) + 1}; }

  const Clock& clock_;
  std::map<std::string, Record, std::less<>> records_;
  std::map<LeaseId, Lease> leases_;
  Revision revision_{1};  // 0 would mean none
  std::int64_t last_lease_ = 0;
};

}  // namespace vmem::cluster
