// Takes and gives back slices of the cluster's address space: the records "slices/N", which name
// the node that allocates there. They are under no lease: a slice outlives its node, as its regions
// do.
//
// Why two live unfenced nodes never hold one slice. A node holds a slice from the answer that its
// commit was done until it posts the release. Meanwhile the record names it:
// - Another node takes slices only where there is no record.
// - Another node takes over a slice only if nodes/ID of the node in the record is absent, in the
//   same commit. An unfenced node's lease lives, so its nodes/ID is there.
// - A late commit of this node changes nothing: each has the condition that the slice's record is
//   as it was read. One that found none may put the record again after a release. Such a record
//   names this node, which does not count it as held until it has rewritten it; that voids late
//   commits.
// - A commit of a node whose membership is over is not done: each has the condition that nodes/ID
//   is as this node knew it, and neither ids nor revisions are reused.
//
// Slices that are taken at once are adjacent, so that a region may cross them. A commit that was
// done and not answered in time leaves strays: records that name this node, which does not hold
// them. The next request takes them where it can, and those that it leaves are released. A stray
// that was taken over is left alone until that is asked for again: regions of this process may
// live in it.
//
// One activity at a time: reads all slices, then commits, for releases first.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/node.hpp"
#include "cluster/enrollment/admission.hpp"
#include "cluster/enrollment/enrollment_events.hpp"
#include "cluster/enrollment/free_slices.hpp"

namespace vmem::cluster {

inline constexpr std::string_view kSlicesPrefix = "slices/";
inline constexpr std::size_t kMostSlicesAtOnce = 100;  // below the limit on edits of a commit

std::string slice_key(Slice slice);
std::string slice_value(NodeId node);

// All records of slices, as of one revision.
struct SliceTable {
  struct Entry {
    NodeId node{};  // 0: the record is damaged, so the slice counts as taken
    Revision modified{};
  };
  std::map<Slice, Entry> taken;

  static SliceTable from(const Read& read);
};

class SliceDesk {
 public:
  SliceDesk(RegistryCalls& calls, const EnrollmentConfig& config, const Random& random, std::uint32_t slices)
      : calls_(calls), config_(config), backoff_(config, random), slices_(slices) {}

  void begin(const Seat& seat);
  // The node's record was changed. What is in flight goes on.
  void renew(const Seat& seat) { seat_ = seat; }
  // The membership is over: returns what was held. What waits goes on with the next begin().
  std::vector<Slice> end();
  // What delays the next begin(), for the errors of what waits for it.
  void tell_trouble(std::optional<Error> trouble) { enrolling_trouble_ = std::move(trouble); }
  // Fails everything that waits.
  void close(const Error& why);

  // Adjacent ones.
  void take(Ticket ticket, std::uint32_t count, std::uint64_t now_us);
  // A slice of a node that is no longer in nodes/.
  void take_over(Ticket ticket, Slice slice, NodeId from, std::uint64_t now_us);
  // Gives back, for as long as that takes. Errors: INVALID_VALUE if it is neither held nor one
  // whose take-over timed out.
  Status release(Slice slice);
  // Gives back all slices that name this node and are not held.
  void release_strays() {
    strays_ = true;
    unclear_.clear();
  }
  bool releasing() const noexcept { return strays_ || !releasing_.empty(); }
  const std::set<Slice>& held() const noexcept { return held_; }
  // Appends the results since the last call.
  void poll(std::vector<EnrollmentEvent>& events);

  bool step(std::uint64_t now_us);
  std::uint64_t due_us() const;

 private:
  struct Want {
    Ticket ticket{};
    std::uint32_t count = 0;
    std::uint64_t deadline_us = 0;
    std::optional<Slice> over;  // take this one over
    NodeId from{};
  };
  // What the commit in flight is for.
  struct Plan {
    std::optional<Ticket> ticket;  // none: a release
    std::vector<Slice> slices;
    bool leaves_strays = false;
  };
  bool expire(std::uint64_t now_us);
  void handle(const Reply& reply, std::uint64_t now_us);
  void read(const Read& read);
  bool plan_release(const SliceTable& table);
  void plan_take(const SliceTable& table);
  void plan_take_over(const SliceTable& table);
  std::set<Slice> strays_in(const SliceTable& table) const;
  bool is_own(Slice slice, const SliceTable::Entry& entry) const;
  void post(const SliceTable& table, Plan plan, const std::optional<std::string>& value, NodeId gone = {});
  void committed(bool done, std::uint64_t now_us);
  void finish(Result<std::vector<Slice>> slices);
  Error too_few(const SliceTable& table, std::uint32_t asked, const FreeSlices& free) const;

  RegistryCalls& calls_;
  const EnrollmentConfig& config_;
  Backoff backoff_;
  const std::uint32_t slices_;
  std::optional<Seat> seat_;
  std::set<Slice> held_, releasing_;
  std::set<Slice> unclear_;  // take-overs that timed out once: no strays, while not held
  bool strays_ = false;
  std::deque<Want> wants_;
  RegistryCall call_;
  std::optional<Plan> plan_;  // none: a read is in flight, or nothing
  std::uint64_t due_us_ = 0;
  std::optional<Error> trouble_, enrolling_trouble_;
  std::vector<SlicesTaken> results_;
};

}  // namespace vmem::cluster
