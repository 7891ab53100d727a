// Loads of pages of published regions: find out who has the page, fetch it from one of them, have a
// worker check it. A source that does not have the page, or sends something else, is not asked
// again for it; the next one is.
//
// Where this node has the page of an earlier version, the source is told, and sends nothing if the
// bytes are the same: they are copied here, and checked like those that were sent. That region may
// be closed meanwhile, so its page is given back soon.
//
// A job that is not complete has work in flight, waits for an answer of the finder, or waits in a
// list for its next try.
//
// Thread: the node's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "rdma/node/node.hpp"
#include "sharing/page_finder.hpp"
#include "sharing/page_holder.hpp"
#include "sharing/region_key.hpp"
#include "tiers/async/inbox.hpp"
#include "tiers/async/transfer_ledger.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::sharing {

struct SharedTimes {
  std::uint64_t patience_us = 20'000'000;  // for a page
  std::uint64_t request_us = 2'000'000;    // for one fetch; at most a quarter of that
};

struct SharedCounters {
  std::uint64_t pages = 0, bytes = 0;  // fetched
  std::uint64_t reused = 0;            // copied here, from an earlier version with the same bytes
  std::uint64_t retries = 0;           // fetches that had to be repeated, or asked of another node
  std::uint64_t mismatches = 0;        // pages that were not what was published
};

struct SharedJob {
  tiers::Transfer transfer;
  SharedPage page;
  std::shared_ptr<const RegionKey> key;
  pagetable::Serial earlier{};       // the version before. 0: none
  bool own = false;                  // this node published the page, and has lost it
  std::unique_ptr<rdma::Slab> slab;  // null: not prepared
  std::optional<LentPage> before;    // this node's page of that version, until
  std::uint64_t before_until_us = 0;
  std::uint64_t known = 0;  // see SharedRequest
  PageSources sources;
  std::size_t source = 0;  // index in sources: whom to ask next
  std::uint64_t give_up_us = 0, again_us = 0;
  // finding: the finder has a weak reference, and may answer when the job is over.
  enum class State : std::uint8_t { waiting, finding, working } state = State::waiting;
  rdma::PageCallId call{};  // the last fetch
  tiers::CameFrom came_from = tiers::CameFrom::anywhere;
  Error error;
};
using SharedJobRef = std::shared_ptr<SharedJob>;

class SharedJobs {
 public:
  // All outlive this. `owner`: of the calls.
  struct Parts {
    rdma::Node& node;
    const rdma::Service& owner;
    PageFinder& finder;
    tiers::Workers& workers;
    tiers::TransferLedger& ledger;
    tiers::Inbox& inbox;
    PageHolder& holder;  // what this node has
  };
  SharedJobs(SharedTimes times, Parts parts)
      : times_{.patience_us = times.patience_us, .request_us = std::min(times.request_us, times.patience_us / 4)},
        parts_(parts) {}

  void begin(const SharedJobRef& job);
  // Somebody waits now for the page of this load.
  void hurry(std::uint64_t transfer);
  // Resumes the jobs that wait; true: one of them did something.
  bool go_on();
  // From now on no job waits for longer than a fetch may take.
  void hurry_all();
  bool empty() const { return jobs_.empty(); }
  // Any thread. A page counts before its load ends.
  SharedCounters counters() const {
    const std::lock_guard lock(counting_);
    return counters_;
  }

 private:
  enum class Came : std::uint8_t { fetched, reused };
  std::uint64_t now_us() const { return parts_.node.clock().now_us(); }
  // A fetch that begins by then ends in time, whatever its source does.
  std::uint64_t last_fetch_us(const SharedJob& job) const {
    return std::min(job.give_up_us, latest_us_) - times_.request_us;
  }
  void prepared(const SharedJobRef& job);
  void look_for_earlier(const SharedJobRef& job);
  void compare(const SharedJobRef& job);
  static void give_back(SharedJob& job);
  void find(const SharedJobRef& job);
  void found(const SharedJobRef& job, Result<PageSources> sources);
  bool advance(const SharedJobRef& job);
  void fetch(const SharedJobRef& job, NodeId from, rdma::PeerId peer);
  void fetched(const SharedJobRef& job, NodeId from, const rdma::CallEnd& end);
  void check(const SharedJobRef& job, NodeId from, Came came, const SharedReply& reply);
  void checked(const SharedJobRef& job, NodeId from, Came came, bool good);
  void not_from(const SharedJobRef& job, NodeId node, std::string why);
  void complete(const SharedJobRef& job, tiers::Outcome outcome);
  void count(std::uint64_t SharedCounters::* counter, std::uint64_t by = 1) {
    const std::lock_guard lock(counting_);
    counters_.*counter += by;
  }

  const SharedTimes times_;
  const Parts parts_;
  std::list<SharedJobRef> jobs_;
  mutable std::mutex counting_;
  SharedCounters counters_;  // protected by counting_
  std::uint64_t latest_us_ = std::numeric_limits<std::uint64_t>::max();
};

}  // namespace vmem::sharing
