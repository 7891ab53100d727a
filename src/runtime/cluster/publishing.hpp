// Publishes regions of this program to the nodes of its cluster, and opens those of others.
//
// Thread: any. Calls wait for the cluster's registry and for other nodes.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/assembly/devices.hpp"
#include "runtime/cluster/joint_regions.hpp"
#include "runtime/cluster/member.hpp"
#include "runtime/cluster/mover_pages.hpp"
#include "runtime/memory/regions.hpp"
#include "runtime/memory/thread_slots.hpp"

namespace vmem::runtime {

class Publishing {
 public:
  struct Parts {
    const Devices& devices;
    pagetable::AddressSpace& space;
    migration::Mover& mover;
    Regions& regions;
    ThreadSlots& slots;
    Member& member;
    JointRegions& joint;
    std::string tenant;  // of this node, as others see it
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
  ~Publishing();

  // The allocation that begins at the pointer is read-only from now on, and other nodes can open
  // it. Errors: INVALID_POINTER, INVALID_VALUE, IN_USE, TIMEOUT (it may be published, or has fewer
  // copies than asked for). It stays writable on all errors but TIMEOUT.
  Status publish(void* pointer, const Order& order);
  // `device`: ordinal; of a region that is open here already, or this program's own, it does not
  // count. Errors: TIMEOUT (there is no such name yet, or its home does not answer), LOST,
  // INVALID_VALUE, ADDRESS_SPACE, OUT_OF_MEMORY.
  Result<Opened> open(const std::string& name, int device, std::uint64_t wait_us);
  // Ends what open or publish began; the last one frees the memory. Errors: INVALID_POINTER,
  // IN_USE, TIMEOUT (freed all the same), LOST (freed, and nobody has some of its pages).
  Status close(void* pointer, vmem_stream stream, std::uint64_t wait_us);
  Status remove(const std::string& name, std::uint64_t wait_us);

  // Errors: INVALID_POINTER for memory that is published or was opened, which close ends.
  Status check_free(const void* pointer) const;
  // Closes everything for other nodes, which take over what only this one has; its memory stays.
  // Before shutdown; no other thread calls.
  void leave();
  // Granules of a region that no node has any more; the node's thread calls it.
  void range_freed(std::uint32_t first, std::uint32_t count);

 private:
  struct Joint {
    cluster::directory::Serial serial{};
    std::string name;
    pagetable::Region* region = nullptr;
    std::uint32_t times = 1;  // opened, or published
  };
  Status announce(pagetable::Region& region, const Order& order, cluster::directory::Runs written);
  std::vector<cluster::Slice> slices_of(const pagetable::Region& region) const;
  Result<Opened> map(const cluster::directory::RegionRecord& record, int device);
  void serve(const Joint& joint, std::shared_ptr<const sharing::RegionKey> key);
  Opened opened(const Joint& joint) const;

  const Parts parts_;
  MoverPages pages_;
  mutable std::mutex opening_;  // one publication, opening or closing at a time
  mutable std::mutex mutex_;
  std::map<std::uint32_t, Joint> joint_;  // by first granule; protected by mutex_
  bool left_ = false;
  std::list<migration::GrantRequest> grants_;  // posted; protected by mutex_
};

}  // namespace vmem::runtime
