// Who has which part of the lent memory, disks and HBM. A lease has what its borrower asked for
// last, as far as there was room. It ends with its borrower, on request, or after the grace period.
// Memory is lent again once it is not in use and has been wiped.
//
// Thread: the one that steps the service.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "base/log_limit.hpp"
#include "rdma/lending/dead_nodes.hpp"
#include "rdma/lending/extents.hpp"
#include "rdma/lending/memory_service/page_store.hpp"
#include "rdma/lending/memory_service/reply_box.hpp"
#include "tiers/async/workers.hpp"

namespace vmem::rdma {

class LeaseBook {
 public:
  // All outlive this.
  struct Parts {
    PageStore& store;
    ReplyBox& replies;
    DeadNodes& dead;
    tiers::Workers& workers;
    ServiceStatistics& statistics;
  };
  LeaseBook(const ServiceConfig& config, Parts parts);

  LeaseRef find(NodeId client) const;  // null: none
  enum class Form : std::uint8_t { resizable, one_extent };
  // Null: there is nothing of what was asked for.
  LeaseRef grant(NodeIdentity client, const std::string& tenant, const wire::Ask& ask, Form form);
  // Gives the lease what was asked for, as far as there is room, and takes back the rest, with the
  // pages there: of memory what is returned, of disks and HBM the end. Pages that are in use, or
  // were put after the ask (`sequence`), stay, and so does what lies before them. REQUIRES: it is
  // resizable.
  void resize(Lease& lease, const wire::Ask& ask, std::uint64_t sequence);
  // The answer to its borrower.
  wire::Lent lent(const Lease& lease) const;
  // The answer to an ask without room: names a holder of the room.
  wire::Lent full() const;
  // True if memory that is being wiped, or a lease that is ending, will give this ask more room.
  // `has`: null: the borrower has no lease.
  bool may_grow(const wire::Ask& ask, const Lease* has) const;
  std::size_t size() const { return leases_.size(); }

  // The peer of a lease is gone: the grace period begins.
  void disconnected(NodeId client, PeerId peer);
  void end(NodeId client);  // REQUIRES: find(client)
  // These return true if they changed anything. Ends leases whose grace period is over.
  bool expire();
  // Erases the pages of ended leases that are not in use, and has their memory wiped.
  bool wipe_ended();
  // Fits the leases to what disks and HBM have now, and tells the borrowers: a disk failed, or the
  // owner wants HBM back, or lends more of it again.
  bool follow_tiers();

 private:
  std::uint64_t share(std::uint64_t asked, std::uint64_t there) const;
  std::uint64_t free_bytes(wire::Medium medium) const;
  std::uint64_t free_range(wire::Medium medium) const;
  std::uint64_t coming_bytes() const;
  std::uint64_t room(const Lease& lease, wire::Medium medium) const;
  void grow_memory(Lease& lease, std::uint64_t bytes);
  Extent largest_free() const;
  void resize_staged(Lease& lease, wire::Medium medium, std::uint64_t asked, std::uint64_t sequence);
  void take_back(Lease& lease, Extent extent, std::uint64_t sequence);
  void wipe(std::vector<Extent> dirty, std::vector<Extent> freed);
  void name_holder(wire::Lent& lent, const Lease* except) const;
  std::vector<LeaseRef> all() const;
  bool follow(wire::Medium medium);
  void shrink(wire::Medium medium, std::uint64_t there);
  bool extend(wire::Medium medium, std::uint64_t there);
  void set_quota(Lease& lease, wire::Medium medium, std::uint64_t bytes);
  void tell(const Lease& lease);

  const ServiceConfig& config_;
  const Parts parts_;
  LogLimit leased_, lapsed_;
  Extents room_;  // of the lent memory, in no lease and wiped
  std::uint64_t last_id_ = 0;
  std::map<NodeId, LeaseRef> leases_;
  std::list<LeaseRef> ended_;  // not wiped yet
  std::uint32_t wiping_ = 0;   // times that memory is being wiped
  std::uint64_t wiping_bytes_ = 0;
};

}  // namespace vmem::rdma
