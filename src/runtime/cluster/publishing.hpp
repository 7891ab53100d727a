// Publishes regions of this program to the nodes of its cluster, and opens those of others.
//
// Thread: any. Calls wait for the cluster's registry and for other nodes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"

#include "runtime/assembly/devices.hpp"
#include "runtime/cluster/mover_pages.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "runtime/remote/remote.hpp"
#include "vmem/cluster.h"

namespace vmem::runtime {

class Publishing final : public AddressUser {
 public:
  struct Parts {
    const Devices& devices;
    pagetable::AddressSpace& space;
    migration::Mover& mover;
    Regions& regions;
    ThreadSlots& slots;
    Remote& remote;  // with a cluster
  };
  struct Order {
    std::string name;
    std::uint32_t copies = 0;     // on daemons
    std::uint64_t expires_s = 0;  // Unix time. 0: never
    std::uint64_t wait_us = 0;
    std::vector<std::string> readers;  // other tenants that may open it
  };
  struct Opened {
    void* pointer = nullptr;
    std::uint64_t bytes = 0;
  };

  explicit Publishing(const Parts& parts);
  ~Publishing() override;

  // The calls wait for others for at most wait_us in all, and hold no lock meanwhile. Only calls
  // for one region wait for each other.

  // The allocation that begins at the pointer is read-only from now on, and other nodes can open
  // it. Errors: INVALID_POINTER, INVALID_VALUE, IN_USE, NOT_INITIALIZED, TIMEOUT, LOST. It is
  // writable again on all errors, unless it is published all the same, as after TIMEOUT (fewer
  // copies than asked for) and LOST (removed meanwhile); then close ends it.
  Status publish(void* pointer, const Order& order);
  // `device`: ordinal; of a region that is open here already, or this program's own, it does not
  // count. Errors: TIMEOUT (there is no such name yet, its home or the registry does not answer, or
  // another thread is at it), LOST, INVALID_VALUE, INVALID_OPTION, IN_USE, ADDRESS_SPACE,
  // OUT_OF_MEMORY, NOT_INITIALIZED.
  Result<Opened> open(const std::string& name, int device, std::uint64_t wait_us);
  // Ends what open or publish began; the last one frees the memory. Errors: INVALID_POINTER,
  // IN_USE (it is held, or another thread is at it), TIMEOUT (freed all the same), LOST (freed, and
  // nobody has some of its pages).
  Status close(void* pointer, vmem_stream stream, std::uint64_t wait_us);

  // Errors: those of the mover's calls.
  Status add_to(vmem_published_statistics& out) const;

  // Closes everything for other nodes, which take over what only this one has; its memory stays.
  // Before shutdown; no other thread calls.
  void leave();

  void range_freed(std::uint32_t first, std::uint32_t count) override;
  void slices_lost(const std::vector<cluster::Slice>& slices) override;

 private:
  using Key = std::shared_ptr<const sharing::RegionKey>;
  struct Joint {
    cluster::directory::Serial serial{};
    std::string name;
    std::string tenant;                // whose nodes may open it
    std::vector<std::string> readers;  // other tenants whose nodes may
    pagetable::Region* region = nullptr;
    std::uint32_t times = 1;  // opened, or published
    // The directory has let go, and this is what close is to return once the memory has ended.
    bool let_go = false;
    Status outcome;
  };
  // By when a call has to end.
  class Deadline {
   public:
    explicit Deadline(std::uint64_t wait_us);
    std::uint64_t left_us() const;

   private:
    SteadyClock clock_;
    std::uint64_t at_us_;
  };
  // While it lives, no other call opens, publishes or closes the region.
  class Turn {
   public:
    Turn(Publishing& of, cluster::directory::Serial serial) : of_(&of), serial_(serial) {}
    Turn(Turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)), serial_(other.serial_) {}
    Turn& operator=(Turn&&) = delete;
    ~Turn();

   private:
    Publishing* of_;
    cluster::directory::Serial serial_;
  };
  Result<Turn> wait_for_turn(cluster::directory::Serial serial, const std::string& name, const Deadline& deadline);
  Result<pagetable::Region*> whole_allocation(const void* pointer) const;
  void withdraw(const Joint& joint);
  void rescue_by_copies(const Joint& joint, const Key& key);
  std::vector<cluster::Slice> slices_of(const pagetable::Region& region) const;
  Joint* find(cluster::directory::Serial serial);
  bool has(cluster::directory::Serial serial);
  Result<Opened> enter(const cluster::directory::RegionRecord& record, int device);
  Result<Joint> map(const cluster::directory::RegionRecord& record, const Key& key, int device);
  Result<Joint> begin_closing(void* pointer, vmem_stream stream);
  Status let_go(const Joint& joint, std::uint64_t wait_us);
  void serve(const Joint& joint, Key key);
  Opened opened(const Joint& joint) const;
  void post(std::unique_ptr<migration::Request> request);
  DirectoryService& directory() const { return parts_.remote.joint()->directory(); }
  Member& member() const { return *parts_.remote.member(); }

  const Parts parts_;
  MoverPages pages_;
  mutable std::mutex mutex_;
  std::condition_variable turn_ended_;
  // Protected by mutex_.
  std::map<std::uint32_t, Joint> joint_;          // by first granule
  std::set<cluster::directory::Serial> at_work_;  // a call has its turn
  bool left_ = false;
  std::mutex posting_;
  std::vector<std::unique_ptr<migration::Request>> posted_;  // nobody waits; protected by posting_
};

}  // namespace vmem::runtime
