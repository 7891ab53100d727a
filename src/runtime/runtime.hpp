// The composition root: the only module that names concrete tiers. Joins driver, address space,
// streams, tiers, policy and mover; the parts below it implement the public API. Calls on resident
// memory stay in the calling thread; the mover does the rest.
#pragma once

#include <functional>
#include <memory>

#include "base/status.hpp"
#include "gpu/driver.hpp"
#include "migration/mover.hpp"
#include "migration/streams.hpp"
#include "runtime/assembly/backing.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/assembly/memory_stack.hpp"
#include "runtime/assembly/mover_waker.hpp"
#include "runtime/assembly/peer_memory.hpp"
#include "runtime/assembly/reserved_space.hpp"
#include "runtime/blocks/undeclared_blocks.hpp"
#include "runtime/cluster/publishing.hpp"
#include "runtime/cluster/slice_grants.hpp"
#include "runtime/explicit/allocations.hpp"
#include "runtime/explicit/copies.hpp"
#include "runtime/explicit/hit_path.hpp"
#include "runtime/explicit/requests.hpp"
#include "runtime/launch/launches.hpp"
#include "runtime/memory/addresses.hpp"
#include "runtime/options/options.hpp"
#include "topology/topology.hpp"
#include "trace/recorder.hpp"

namespace vmem::runtime {

class Runtime final {
 public:
  static Result<std::unique_ptr<Runtime>> create(const Options& options);
  // With the caller's driver (tests: a decorated one).
  static Result<std::unique_ptr<Runtime>> create(const Options& options, std::shared_ptr<const gpu::Driver> driver);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Ends all allocations when their last uses are complete. Errors: IN_USE; a lost device is no
  // error.
  Status shut_down();
  // The process ends: stops the mover; the GPU is not touched any more.
  void stop();
  // A thread's own call found the device lost. If that is so, returns true and every thread hears
  // of it.
  bool report_loss(const Error& error);
  Status close_stream(vmem_stream stream);
  Status statistics(vmem_statistics& out);
  // To stderr, with the option call_times: driver call times since the last report.
  void report_call_times() const;

  const gpu::Driver& driver() const { return *driver_; }
  trace::Recorder* recorder() { return recorder_.get(); }  // null: no trace
  const Devices& devices() const { return *devices_; }
  migration::Mover& mover() { return *mover_; }
  pagetable::AddressSpace& space() const { return reserved_->space(); }
  migration::StreamTable& streams() { return *streams_; }
  const AddressResolver& addresses() const { return interface_->addresses; }
  MoveGate& move_gate() { return backing_->gate; }
  // Programs that call vmem.
  Allocations& allocations() { return interface_->allocations; }
  HitPath& hit_path() { return interface_->hit_path; }
  Copies& copies() { return interface_->copies; }
  Requests& requests() { return interface_->requests; }
  // Programs that do not.
  UndeclaredBlocks& blocks() { return interface_->blocks; }
  // Null: without the option cluster.
  Publishing* publishing() { return publishing_.get(); }
  Launches& launches() { return interface_->launches; }
  const Launches& launches() const { return interface_->launches; }

 private:
  struct Interface {
    explicit Interface(Runtime& runtime);
    AddressResolver addresses;
    Readiness readiness;
    Allocations allocations;
    HitPath hit_path;
    Copies copies;
    Requests requests;
    UndeclaredBlocks blocks;
    Launches launches;
  };

  Runtime(Options options, std::shared_ptr<const gpu::Driver> driver);
  Status start();
  Status start_mover();
  SliceGrants slice_grants();
  void start_publishing();
  Result<migration::MoverConfig> mover_config();
  Result<std::vector<migration::MoverDevice>> mover_devices() const;

  const Options options_;
  const std::shared_ptr<const gpu::Driver> driver_;
  std::unique_ptr<Devices> devices_;
  std::unique_ptr<ReservedSpace> reserved_;
  std::unique_ptr<migration::StreamTable> streams_;
  topology::Topology topology_;  // constant once started
  MoverWaker waker_;
  std::unique_ptr<ThreadSlots> slots_;
  std::unique_ptr<MemoryStack> stack_;
  std::unique_ptr<PeerMemory> peers_;
  std::unique_ptr<trace::Recorder> recorder_;  // outlives the mover
  migration::Mover* mover_ = nullptr;          // the waker's
  std::unique_ptr<Backing> backing_;
  std::unique_ptr<Suballocator> small_;
  std::unique_ptr<Interface> interface_;
  std::unique_ptr<Publishing> publishing_;  // in a cluster
};

// The process's runtime, between vmem_init and vmem_shutdown; otherwise null.
Runtime* live_runtime() noexcept;

}  // namespace vmem::runtime
