// How a node becomes and stays a member of a cluster whose records are in a Registry: it compares
// parameters, gets an id, keeps a lease, knows the other nodes, and takes serials and slices.
//
// Two live unfenced nodes never have one id: an id is a serial that one commit has taken, and is
// not given out again. A node whose lease the registry has ended was fenced before (LeaseKeeper),
// and gets another id. Of slices the same holds (SliceDesk).
//
// REQUIRES of other nodes: they erase nodes/ID only if that node's process has ended. Erasing the
// record of a live process ends its membership before it is fenced; to make a node leave, mark it
// (drain_commit).
//
// Pure: one thread, no clock and no network of its own. The owner calls step() until it returns
// false, when it is due, and whenever the registry has replies.
#pragma once

#include <optional>
#include <vector>

#include "cluster/enrollment/admission.hpp"
#include "cluster/enrollment/enrollment_events.hpp"
#include "cluster/enrollment/holdings_desk.hpp"
#include "cluster/enrollment/record_desk.hpp"
#include "cluster/enrollment/registry_members.hpp"
#include "cluster/enrollment/serial_desk.hpp"
#include "cluster/enrollment/slice_desk.hpp"

namespace vmem::cluster {

class Enrollment {
 public:
  enum class Stage : std::uint8_t {
    enrolling,  // also after an expulsion
    enrolled,   // fenced or not
    leaving,
    over,  // left, or refused
  };
  struct Setup {
    ClusterParameters parameters;
    NodeRecord self;  // as it begins (change_record); its token is chosen here
    EnrollmentConfig config;
    Random random;
  };

  // The registry and the clock outlive this.
  Enrollment(Registry& registry, const Clock& clock, Setup setup);

  bool step();  // returns whether it did anything
  // When step() has to be called, even if the registry has no replies. UINT64_MAX: not at all.
  std::uint64_t next_due_us() const;
  void poll(std::vector<EnrollmentEvent>& events);

  Stage stage() const noexcept { return stage_; }
  // 0: no member at present
  NodeId id() const noexcept { return seat_ ? seat_->id : NodeId{}; }
  // Of the record nodes/ID: a commit that requires it is done only while this node is a member.
  Revision record() const noexcept { return seat_ ? seat_->record : Revision{}; }
  // Whether this node must not act as a member. True from the fence on, without a call of step(),
  // so ask right before each act.
  bool fenced() const noexcept { return clock_.now_us() >= fence_at_us(); }
  // For threads that read the clock themselves. 0: fenced
  std::uint64_t fence_at_us() const noexcept { return seat_ ? lease_.fence_at_us() : 0; }
  // The last error that delayed enrollment.
  const std::optional<Error>& trouble() const noexcept { return admission_.trouble(); }

  RegistryMembers& members() noexcept { return members_; }
  const RegistryMembers& members() const noexcept { return members_; }
  // A peer has mentioned this revision.
  void poke(Revision revision) { poll_.poke(revision); }

  // Changes what the registry says of this node, for as long as that takes, and after an expulsion.
  // Incarnation and token are kept, whatever is passed. Of several changes the last one wins, and
  // ends in RecordChanged with its ticket; one that it replaces may end in nothing. Ignored while
  // this node leaves. Errors: INVALID_OPTION, for what other nodes could not read
  // (parse_node_record); nothing changes.
  Result<Ticket> change_record(NodeRecord record);

  // What the registry is to say that this node holds for others, while it is a member.
  void tell_holdings(const Holdings& holdings) { holdings_.tell(holdings); }

  // Each ends in one event with its ticket.
  Ticket take_serial();
  Ticket take_slices(std::uint32_t count);  // adjacent ones
  // Takes the slice of a node whose membership is over. REQUIRES: no region of that node lives in
  // it, or this process was that node before it was expelled.
  Ticket take_over_slice(Slice slice, NodeId from);
  // REQUIRES: no region lives in the slice. Errors: INVALID_VALUE if it is neither held nor one
  // whose take-over timed out.
  Status release_slice(Slice slice) { return slices_.release(slice); }
  const std::set<Slice>& slices() const noexcept { return slices_.held(); }

  // Leaves: releases these slices, in which no region lives, ends the lease, and says so (Left).
  void leave(const std::vector<Slice>& empty);

 private:
  bool note_fence(std::uint64_t now_us);
  bool step_stage(std::uint64_t now_us);
  bool step_enrolling(std::uint64_t now_us);
  bool step_leaving(std::uint64_t now_us);
  bool check_lease();
  bool step_view(std::uint64_t now_us);
  bool step_record(std::uint64_t now_us);
  bool is_own(const NodesReading& reading);
  void say_changed();
  void take_seat(Seat seat);
  void lose_seat(Error why);
  void close(const Error& why);
  void end_lease();
  void refuse(Error why);
  void finish(EnrollmentEvent last);
  Ticket next_ticket() { return last_ticket_ = Ticket{static_cast<std::uint64_t>(last_ticket_) + 1}; }
  Ticket asked(Ticket ticket);

  const Clock& clock_;
  const Setup setup_;
  RegistryCalls calls_;
  LeaseKeeper lease_;
  Admission admission_;
  RecordDesk record_;
  HoldingsDesk holdings_;
  SerialDesk serials_;
  SliceDesk slices_;
  NodePoll poll_;
  RegistryMembers members_;
  Stage stage_ = Stage::enrolling;
  std::optional<Seat> seat_;
  bool said_fenced_ = false;
  bool expelled_ = false;         // once, at least
  std::optional<Error> closed_;   // why nothing is taken any more: it leaves, left, or was refused
  std::optional<Ticket> change_;  // of the record: RecordChanged has to be said
  std::uint64_t leave_by_us_ = 0;
  bool released_ = false;  // leaving: every slice to release was released
  Ticket last_ticket_{};
  std::vector<EnrollmentEvent> events_;
};

}  // namespace vmem::cluster
