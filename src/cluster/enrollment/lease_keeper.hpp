// Holds a node's lease, and says when the node must fence itself.
//
// The lease is counted from when the last good renewal was sent, which is before the registry began
// to count. The fence comes before that count, less the clocks' drift, reaches the lease's end:
// once the registry ends the lease, this node has stopped to act as a member.
//
// The fence needs no call to come: fenced() only compares times. A renewal that answers after the
// fence does not end it. The lease lives, but the node's record may have been erased meanwhile, so
// the fence ends once the record was read after that (confirm).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/enrollment/enrollment_config.hpp"
#include "cluster/enrollment/registry_calls.hpp"

namespace vmem::cluster {

class LeaseKeeper {
 public:
  enum class State : std::uint8_t {
    idle,
    granting,
    held,
    lost,  // the registry ended it
    ending,
  };

  LeaseKeeper(RegistryCalls& calls, const EnrollmentConfig& config, const Random& random)
      : calls_(calls), config_(config), backoff_(config, random) {}

  // REQUIRES: idle. Asks for a lease until one is granted. One whose grant got no answer ends by
  // itself; no record is under it.
  void begin();
  // Ends the lease, for as long as that takes; then idle. Fenced at once.
  void end();
  // Forgets a lease that has ended, or will by itself. Then idle.
  void abandon();

  State state() const noexcept { return state_; }
  LeaseId lease() const noexcept { return lease_; }
  std::uint64_t fence_at_us() const noexcept { return state_ == State::held ? fence_at_us_ : 0; }
  bool fenced(std::uint64_t now_us) const noexcept { return now_us >= fence_at_us(); }

  // The node's record was there, in a reading that was sent at `read_sent_us`.
  void confirm(std::uint64_t read_sent_us);

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;  // of the next request; UINT64_MAX: a reply comes first

 private:
  bool take_reply(std::uint64_t now_us);
  bool take_renewals(std::uint64_t now_us);
  void renewed(const RegistryCall& call, const Renewed& renewal, std::uint64_t now_us);
  void granted(const Granted& granted);
  void post(std::uint64_t now_us);
  std::uint64_t fence_after(std::uint64_t sent_us, std::uint32_t seconds) const;

  RegistryCalls& calls_;
  const EnrollmentConfig& config_;
  Backoff backoff_;
  State state_ = State::idle;
  LeaseId lease_{};
  RegistryCall call_;                   // a grant or an end
  std::vector<RegistryCall> renewals_;  // several: a lost one does not hold up the next
  std::uint64_t due_us_ = 0;
  std::uint64_t fence_at_us_ = 0;
  // A good renewal that answered after the fence. A later one replaces it only once it is over, or
  // a reading would never be late enough.
  struct Late {
    std::uint64_t fence_at_us = 0, answered_us = 0;
  };
  std::optional<Late> late_;
};

}  // namespace vmem::cluster
