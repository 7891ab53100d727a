// A runtime for programs that do not call vmem, put together over a virtual GPU: the parts of
// runtime::Runtime that such programs reach. One thread plays the program and the mover, each with
// a clock of its own: the mover steps until its clock has passed the program's, or until it has
// answered what the program waits for.
#pragma once

#include <memory>

#include "migration/mover.hpp"
#include "replay/replay.hpp"
#include "replay/virtual_below.hpp"
#include "replay/virtual_host.hpp"
#include "runtime/assembly/backing.hpp"
#include "runtime/assembly/devices.hpp"
#include "runtime/assembly/reserved_space.hpp"
#include "runtime/blocks/undeclared_blocks.hpp"
#include "runtime/explicit/allocations.hpp"
#include "runtime/launch/launches.hpp"

namespace vmem::replay {

class Machine {
 public:
  static Result<std::unique_ptr<Machine>> start(const Setting& setting);
  ~Machine();

  VirtualGpu& gpu() { return gpu_; }
  Contents& contents() { return contents_; }
  // Of all tiers; must stay 0.
  std::uint64_t wrong_loads() const { return host_->wrong_loads() + (peer_ ? peer_->wrong_loads() : 0); }
  const VirtualBelow* below() const { return below_.get(); }  // null: none
  pagetable::AddressSpace& space() { return reserved_->space(); }
  runtime::UndeclaredBlocks& blocks() { return *blocks_; }
  runtime::Launches& launches() { return *launches_; }
  const migration::MoverCounters& counters() { return mover_->parts().core.counters; }
  std::uint64_t frames_made();
  std::uint64_t mover_busy_ns() const { return busy_ns_; }
  // The mover has that many uses more to read.
  void uses_logged(std::size_t uses);
  // Steps the mover until its clock has passed the program's.
  void catch_up();

 private:
  explicit Machine(const Setting& setting);
  Status start();
  void make_tiers();
  migration::MoverConfig mover_config(const runtime::Device& device);
  Status start_program();
  void serve(const migration::Request& request);
  void step();

  const Setting setting_;
  Options options_;
  VirtualGpu gpu_;
  Contents contents_;
  std::unique_ptr<runtime::Devices> devices_;
  std::unique_ptr<runtime::ReservedSpace> reserved_;
  std::unique_ptr<migration::StreamTable> streams_;
  std::unique_ptr<runtime::ThreadSlots> slots_;
  std::unique_ptr<VirtualHost> host_, peer_;  // peer_: null without
  std::unique_ptr<VirtualBelow> below_;       // null: none
  std::unique_ptr<migration::Mover> mover_;
  std::uint64_t mover_ns_ = 0;    // when the mover steps next
  std::uint64_t stepped_ns_ = 0;  // when its last step ended
  std::uint64_t unread_ns_ = 0;   // what reading the threads' logs will take the mover
  bool sleeps_ = true;
  std::uint64_t busy_ns_ = 0;
  // In the order of use, as in Runtime.
  std::unique_ptr<runtime::Backing> backing_;
  std::unique_ptr<runtime::Suballocator> small_;
  std::unique_ptr<runtime::AddressResolver> addresses_;
  std::unique_ptr<runtime::Readiness> readiness_;
  std::unique_ptr<tiers::FileTier> files_;
  std::unique_ptr<runtime::Allocations> allocations_;
  std::unique_ptr<runtime::UndeclaredBlocks> blocks_;
  std::unique_ptr<runtime::Launches> launches_;
};

}  // namespace vmem::replay
