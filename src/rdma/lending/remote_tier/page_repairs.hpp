// Copies pages between lenders in the background: makes lost copies again, empties draining nodes,
// and HBM that its owner wants back. A page is fetched as its lender stores it, checked, stored
// elsewhere, and only then released where it was. If the mover stores or releases the page
// meanwhile, the new copy is dropped.
//
// Few pages are in flight, one while the mover's own transfers are, and no more bytes per second
// begin than the rate says. Somebody waits for a lender that drains, and for HBM that its owner
// wants back: then more may be in flight, also beside the mover's, and what leaves goes in the
// order of pages read ahead. The rate does not bind what leaves HBM.
//
// Thread: the node's.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <vector>

#include "pagetable/types.hpp"
#include "rdma/lending/remote_tier/lenders.hpp"
#include "rdma/lending/remote_tier/page_buffers.hpp"
#include "rdma/lending/remote_tier/page_protection.hpp"
#include "rdma/lending/remote_tier/remote_counters.hpp"
#include "rdma/lending/remote_tier/stored_pages.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::rdma {

class PageRepairs {
 public:
  // All outlive this.
  struct Parts {
    Node& node;
    tiers::Workers& workers;
    Lenders& lenders;
    CopyPlacer& placer;
    StoredPages& pages;
    PageProtection& protection;
    RemoteCounters& counters;
  };
  PageRepairs(const RemoteConfig& config, Parts parts)
      : config_(config), parts_(parts), buffers_(config.drain_bytes >> pagetable::kGranuleShift) {}

  // `busy`: transfers of the mover are in flight. True: it did something.
  bool go_on(bool busy);

 private:
  static constexpr std::size_t kMostInFlight = 4;

  struct Job {
    tiers::SlotId slot = 0;
    std::size_t copy = 0;
    StoredPage held;  // what the slot held at the beginning
    CopyPlace from, to;
    PageBuffers::Buffer buffer;
    Bytes bytes;
    std::unique_ptr<Slab> slab;  // null: the job was not prepared
    wire::Order order = wire::Order::background;
    bool intact = false;
  };
  using JobRef = std::shared_ptr<Job>;

  bool is_awaited() const;
  bool has_room(bool busy) const;
  void look();
  bool begin(tiers::SlotId slot);
  std::optional<CopyPlace> source(tiers::SlotId slot, const ValidCopies& valid) const;
  void make(const Repair& repair, tiers::SlotId slot, const StoredPage& held);
  void fetch(const JobRef& job);
  void check(const JobRef& job);
  void put(const JobRef& job);
  void commit(const JobRef& job);
  void end(const Job& job);
  void fail(const JobRef& job);
  void pace(std::uint64_t bytes, std::uint64_t rate);
  std::uint64_t give_up_us() const { return parts_.node.clock().now_us() + config_.patience_us; }

  const RemoteConfig& config_;
  const Parts parts_;
  PageBuffers buffers_;
  std::vector<tiers::SlotId> to_look_at_;
  std::unordered_set<tiers::SlotId> in_flight_;
  std::uint64_t in_flight_bytes_ = 0;
  std::uint64_t seen_rooms_ = 0, seen_pages_ = 0;  // revisions that the last look took in
  bool again_ = false;                             // some pages have to be looked at once more
  std::uint64_t look_us_ = 0;                      // not before this
  std::uint64_t next_us_ = 0;                      // the next copy, by the rate
  std::uint64_t awaited_us_ = 0;                   // the last move that somebody waits for; 0: none
  std::uint32_t failures_ = 0;
};

}  // namespace vmem::rdma
