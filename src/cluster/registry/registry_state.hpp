// A registry in plain memory, and the reference for what every registry must answer: records,
// leases and the revision. Pure but for the clock.
#pragma once

#include <limits>
#include <map>
#include <vector>

#include "base/clock.hpp"
#include "cluster/registry/registry.hpp"
#include "cluster/registry/request_check.hpp"

namespace vmem::cluster {

// Of what a state holds.
struct RegistryLimits {
  std::size_t records = std::numeric_limits<std::size_t>::max();
  std::size_t bytes = std::numeric_limits<std::size_t>::max();  // of keys and values
  std::size_t leases = std::numeric_limits<std::size_t>::max();
  std::uint32_t lease_seconds = kMostLeaseSeconds;
};

// All that has to outlive a process that keeps a registry.
struct RegistryImage {
  struct Lease {
    LeaseId id{};
    std::uint32_t seconds = 0;
    bool operator==(const Lease&) const = default;
  };
  std::vector<Record> records;  // by key
  std::vector<Lease> leases;    // by id
  Revision revision{1};         // 0 would mean none
  LeaseId last_lease{};         // the last one that was granted
  bool operator==(const RegistryImage&) const = default;
};

// One thread.
class RegistryState {
 public:
  explicit RegistryState(const Clock& clock) : clock_(clock) {}
  // The leases run their full time from now on.
  RegistryState(const Clock& clock, const RegistryImage& image, const RegistryLimits& limits);

  // Carries out the request, after what has expired. Errors in the reply: INVALID_VALUE as
  // check_request, for a lease that is too long, and for an edit under a lease that has ended;
  // OUT_OF_MEMORY if a limit would be passed.
  Reply apply(RequestId id, const RegistryRequest& request);
  // Ends the leases that were not renewed in time, and erases their records.
  void expire();

  Revision revision() const noexcept { return revision_; }
  // When expire() has something to do. UINT64_MAX: never
  std::uint64_t next_expiry_us() const noexcept;
  RegistryImage image() const;
  // Counts the changes of image().
  std::uint64_t changes() const noexcept { return changes_; }

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
  Status check_room(const Commit& commit) const;
  bool make(const Edit& edit, Revision revision);
  void end(LeaseId lease);
  Revision next_revision() const noexcept { return Revision{std::int64_t(revision_) + 1}; }

  const Clock& clock_;
  const RegistryLimits limits_;
  std::map<std::string, Record, std::less<>> records_;
  std::size_t bytes_ = 0;  // of keys and values
  std::map<LeaseId, Lease> leases_;
  Revision revision_ = RegistryImage{}.revision;
  std::int64_t last_lease_ = 0;
  std::uint64_t changes_ = 0;
};

}  // namespace vmem::cluster
