// The emulated machine: its devices, host memory, address space, and the program's handles. One per
// process, never destroyed, because stream workers outlive static destructors.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/emu/address_space.hpp"
#include "gpu/emu/capture.hpp"
#include "gpu/emu/config.hpp"
#include "gpu/emu/context.hpp"
#include "gpu/emu/cuda_api.hpp"
#include "gpu/emu/event.hpp"
#include "gpu/emu/graph.hpp"
#include "gpu/emu/handle_table.hpp"
#include "gpu/emu/kernels.hpp"
#include "gpu/emu/links.hpp"
#include "gpu/emu/objects.hpp"
#include "gpu/emu/step_scheduler.hpp"

namespace vmem::emu {

class Device {
 public:
  Device(int number, const Config& config);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  static constexpr unsigned multiprocessors = 1, threads_per_multiprocessor = 2048, blocks_per_multiprocessor = 32;

  const int ordinal;
  const std::shared_ptr<PhysicalMemory> memory;
  Link h2d, d2h;
  Link host_duplex;  // both directions together
  const bool limits_duplex;
  std::array<std::unique_ptr<Link>, device_count_max> to_peer;  // null: not connected
  CUmemoryPool default_pool = nullptr;                          // constant after build()
  std::atomic<std::uint32_t> peer_accessors{0};                 // bit i: device i has heap access

  std::shared_ptr<Context> primary_context() const {
    const std::lock_guard lock(primary_mutex);
    return primary;
  }

  mutable std::mutex primary_mutex;  // protects the members below; taken before every other lock
  std::shared_ptr<Context> primary;
  CUcontext primary_handle = nullptr;
  unsigned primary_references = 0;
};

// Both directions of a link that several devices share.
struct SharedLink {
  explicit SharedLink(double gbps) : down(gbps), up(gbps) {}
  Link down, up;
};

// Pinned host memory, by address.
class PinnedRanges {
 public:
  struct Range {
    std::uint64_t begin = 0;
    std::size_t bytes = 0;    // as requested
    bool registered = false;  // by cuMemHostRegister; otherwise allocated here
    const Context* owner = nullptr;
  };
  bool insert(const Range& range);                    // false: overlaps another range
  Range erase(std::uint64_t begin, bool registered);  // 0 bytes: none
  std::vector<Range> erase_owned_by(const Context* owner);
  Range find(std::uint64_t address) const;  // 0 bytes: none
  bool empty() const;

 private:
  mutable std::mutex mutex_;  // leaf
  std::map<std::uint64_t, Range> ranges_;
};

class Machine {
 public:
  CUresult initialize();
  // Fails while any part of the machine is in use.
  bool configure(const char* spec, std::string& error);
  // Waits for all work of all contexts.
  void synchronize_all() const;
  bool initialized() const { return initialized_.load(std::memory_order_acquire); }

  const Config& config() const { return config_; }
  Device* device(int ordinal) const;
  std::shared_ptr<Device> device_ref(int ordinal) const { return devices_[static_cast<std::size_t>(ordinal)]; }
  PhysicalMemory& host_memory() const { return *host_memory_; }
  // The uplink of the device's PCIe switch; null if the device is below none.
  SharedLink* uplink(int device) const;
  // The link between two NUMA nodes; `down` leads to the higher node.
  SharedLink& socket(int node, int other);
  AddressSpace& addresses() { return addresses_; }
  PinnedRanges& pinned() { return pinned_; }
  StepScheduler& steps() { return steps_; }

  HandleTable<Context, CUcontext> contexts;
  HandleTable<Stream, CUstream> streams;
  HandleTable<Event, CUevent> events;
  HandleTable<Module, CUmodule> modules;
  // Launches accept both kinds of handle, so the two tables share no value. Handles of an unloaded
  // module are reused, as by the real driver.
  HandleTable<Function, CUfunction> functions{Values::used_again};
  HandleTable<LibraryKernel, CUkernel> kernels{Values::used_again, 0x1008};
  HandleTable<Library, CUlibrary> libraries;
  HandleTable<Graph, CUgraph> graphs;
  HandleTable<Node, CUgraphNode> nodes;
  HandleTable<Executable, CUgraphExec> executables;
  HandleTable<Frame, CUmemGenericAllocationHandle> frames;
  HandleTable<Array, CUarray> arrays;
  HandleTable<Texture, CUtexObject> textures;
  HandleTable<Pool, CUmemoryPool> pools;

 private:
  bool read_config(const char* spec, std::string& error);
  bool in_use() const;
  void build();

  std::mutex setup_mutex_;  // protects configuration; taken before all other locks
  std::atomic<bool> initialized_{false};
  bool configured_ = false;
  // Constant from cuInit on, except for a reconfiguration while nothing is in use.
  Config config_;
  std::vector<std::shared_ptr<Device>> devices_;
  std::shared_ptr<PhysicalMemory> host_memory_;
  std::vector<std::unique_ptr<SharedLink>> uplinks_;                    // as Config::pcie_switches
  std::map<std::pair<int, int>, std::unique_ptr<SharedLink>> sockets_;  // (lower, higher) node
  AddressSpace addresses_;
  PinnedRanges pinned_;
  StepScheduler steps_;
};

Machine& machine();

}  // namespace vmem::emu
