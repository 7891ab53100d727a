// Puts the records of regions that this node publishes. A name that is taken is refused, unless by
// an earlier version of the same publisher, or of the same tenant if that publisher's membership is
// over; then the version counts on.
//
// A commit without an answer is settled by the next reading. If the deadline comes first, the
// region may appear later: it is removed then.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "cluster/directory/directory_events.hpp"
#include "cluster/directory/home_context.hpp"
#include "cluster/directory/region_poll.hpp"

namespace vmem::cluster::directory {

struct PublishOrder {
  Ticket ticket{};
  RegionRecord region;  // with this node as its home and only participant
  Runs written;         // the pages that are not FREE
  std::uint64_t asked_us = 0, deadline_us = 0;
};

// Errors: INVALID_RANGE, for what are no ascending runs of the region's pages.
Status check_written(const RegionRecord& region, const Runs& written);

class PublishDesk {
 public:
  PublishDesk(RegistryCalls& calls, const HomeContext& context, RegionPoll& poll)
      : calls_(calls), context_(context), poll_(poll) {}

  void publish(PublishOrder order) { orders_.push_back(std::move(order)); }
  void end(const Error& why, Outbox& out);

  struct Done {
    PublishOrder order;
    StoredRegion region;
  };
  std::optional<Done> take_done();
  // Whether a region that appears with this node as its home was given up before.
  bool is_abandoned(Serial serial) const { return abandoned_.contains(serial); }
  void forget(Serial serial) { abandoned_.erase(serial); }  // it was erased: it never appears again
  bool expects(Serial serial) const { return !orders_.empty() && orders_.front().region.serial == serial; }

  bool step(std::uint64_t now_us, Outbox& out);
  std::uint64_t due_us() const;

 private:
  void finish(Error why, Outbox& out);
  void settle(const StoredRegion& region);
  void post(const StoredName* name);
  void try_front(std::uint64_t now_us, Outbox& out);
  void handle(const Reply& reply, std::uint64_t now_us);
  static Error late(const PublishOrder& order);
  bool expire(std::uint64_t now_us, Outbox& out);

  RegistryCalls& calls_;
  const HomeContext& context_;
  RegionPoll& poll_;
  std::deque<PublishOrder> orders_;  // one at a time
  RegistryCall call_;
  bool unsure_ = false;             // a commit for the first order may be done, or be done later
  std::uint64_t read_from_us_ = 0;  // a reading that was sent since then is needed
  std::set<Serial> abandoned_;
  std::deque<Done> done_;
};

}  // namespace vmem::cluster::directory
