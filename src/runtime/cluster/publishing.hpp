// Publishes regions of this program to the nodes of its cluster, and opens those of others.
//
// Thread: any. Calls wait for the cluster's registry and for other nodes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "runtime/assembly/devices.hpp"
#include "runtime/cluster/mover_pages.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "runtime/remote/remote.hpp"

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
  };
  struct Opened {
    void* pointer = nullptr;
    std::uint64_t bytes = 0;
  };

  explicit Publishing(const Parts& parts);
  ~Publishing() override;

  // The allocation that begins at the pointer is read-only from now on, and other nodes can open
  // it. Errors: INVALID_POINTER, INVALID_VALUE, IN_USE, and those of may_be_published(). It stays
  // writable on all errors but those.
  Status publish(void* pointer, const Order& order);
  // Errors of publish after which other nodes may have the region: close ends it. TIMEOUT (the
  // registry did not answer, or there are fewer copies than asked for), LOST (it was removed
  // meanwhile).
  static bool may_be_published(vmem_status status);
  // `device`: ordinal; of a region that is open here already, or this program's own, it does not
  // count. Errors: TIMEOUT (there is no such name yet, or its home does not answer), LOST,
  // INVALID_VALUE, ADDRESS_SPACE, OUT_OF_MEMORY.
  Result<Opened> open(const std::string& name, int device, std::uint64_t wait_us);
  // Ends what open or publish began; the last one frees the memory. Errors: INVALID_POINTER,
  // IN_USE, TIMEOUT (freed all the same), LOST (freed, and nobody has some of its pages).
  Status close(void* pointer, vmem_stream stream, std::uint64_t wait_us);

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
    pagetable::Region* region = nullptr;
    std::uint32_t times = 1;  // opened, or published
    // The directory has let go, and this is what close is to return once the memory has ended.
    bool let_go = false;
    Status outcome;
  };
  Result<pagetable::Region*> whole_allocation(const void* pointer) const;
  void withdraw(const Joint& joint);
  std::vector<cluster::Slice> slices_of(const pagetable::Region& region) const;
  Joint* find(cluster::directory::Serial serial);
  Result<Joint> map(const cluster::directory::RegionRecord& record, const Key& key, int device);
  Status let_go(const Joint& joint, std::uint64_t wait_us);
  void serve(const Joint& joint, Key key);
  Opened opened(const Joint& joint) const;
  void post(std::unique_ptr<migration::Request> request);
  DirectoryService& directory() const { return parts_.remote.joint()->directory(); }
  Member& member() const { return *parts_.remote.member(); }

  const Parts parts_;
  MoverPages pages_;
  std::mutex opening_;                    // one publication, opening or closing at a time
  std::map<std::uint32_t, Joint> joint_;  // by first granule; protected by opening_
  bool left_ = false;
  std::mutex posting_;
  std::vector<std::unique_ptr<migration::Request>> posted_;  // nobody waits; protected by posting_
};

}  // namespace vmem::runtime
