// Keeps the record "holds/ID" as the node's last word of what it holds. It is written soon after
// that changes, and again after a while: a commit without an answer may be carried out after a
// later one. Counts of what was sent go along.
#pragma once

#include <cstdint>
#include <optional>

#include "base/outage_log.hpp"
#include "cluster/enrollment/admission.hpp"

namespace vmem::cluster {

class HoldingsDesk {
 public:
  HoldingsDesk(RegistryCalls& calls, const LeaseKeeper& lease, const EnrollmentConfig& config)
      : calls_(calls), lease_(lease), config_(config), failures_(calls.clock()) {}

  void begin(NodeId self);
  void end();  // the membership is over; what was told last counts for the next one
  void tell(const Holdings& holdings) { wanted_ = holdings; }

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  void failed(const Error& error);

  RegistryCalls& calls_;
  const LeaseKeeper& lease_;
  const EnrollmentConfig& config_;
  NodeId self_{};  // 0: no member
  std::optional<Holdings> wanted_, sent_;
  RegistryCall call_;
  std::uint64_t sent_us_ = 0;
  OutageLog failures_;
};

}  // namespace vmem::cluster
