// Changes the value of this node's record, nodes/ID, while the node is a member. The record stays
// under the node's lease.
//
// Each commit has the condition that the record is as this node knows it. If it gets no answer it
// may be carried out later, so the same commit is posted again, and no other one, until one of the
// two was answered as done, or a reading shows their value. At most one of them can be done. If the
// record is neither the known one nor that of the commit, it is not this node's any more.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/outage_log.hpp"
#include "cluster/enrollment/admission.hpp"

namespace vmem::cluster {

class RecordDesk {
 public:
  RecordDesk(RegistryCalls& calls, const LeaseKeeper& lease, const EnrollmentConfig& config, const Random& random)
      : calls_(calls), lease_(lease), backoff_(config, random), failures_(calls.clock()) {}

  void begin(const Seat& seat);
  void end();  // the membership is over
  // The last value wins. REQUIRES: begun.
  void change(std::string value) { wanted_ = std::move(value); }
  // Whether the registry has the last value, as far as this node knows.
  bool settled() const { return !sent_ && (!seat_ || wanted_ == seat_->value); }

  // Takes in a reading of nodes/ID, not earlier than the seat's record. Returns whether the record
  // is this node's.
  bool read(const Record& record);
  // The seat with the changed record, once after each change.
  std::optional<Seat> take_changed();

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  void handle(const Reply& reply, std::uint64_t now_us);
  void warn(const Error& error);
  void settle(Revision revision);
  Commit commit() const;

  RegistryCalls& calls_;
  const LeaseKeeper& lease_;
  Backoff backoff_;
  std::optional<Seat> seat_;
  std::string wanted_;
  // The value of the commit that is in flight, or may still be carried out.
  std::optional<std::string> sent_;
  bool unsure_ = false;  // it got no answer once
  bool changed_ = false;
  RegistryCall call_;
  std::uint64_t due_us_ = 0;
  OutageLog failures_;
};

}  // namespace vmem::cluster
