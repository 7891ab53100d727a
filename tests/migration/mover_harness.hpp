// A mover on a small emulated machine that the test steps itself, with launching threads played by the test: each of what
// Runtime::acquire and release do is a call of its own, so any interleaving can be written down. Nothing here sleeps: GPU work
// is unfinished because a gate holds it, and time is a number.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu/fault_injection.hpp"
#include "gpu/handles.hpp"
#include "migration/mover.hpp"
#include "migration/scripted_parts.hpp"

namespace vmem::migration {

using pagetable::kNoFrame;
using pagetable::Mapped;
using pagetable::RegionState;
using pagetable::Span;
using pagetable::ThreadSlot;

inline constexpr std::uint64_t kPageBytes = pagetable::kGranuleBytes;

struct MachineShape {
  int devices = 1;
  std::uint32_t hbm_pages = 4;  // per device, of 2 MiB
  std::uint32_t host_pages = 16;
  std::uint32_t spill_pages = 0;
  // By device 1: to device 0 where it is the only one of the mover's, else what it leaves.
  std::uint32_t lent_pages = 0;
  bool files = false;     // read-only regions can be mapped
  bool straight = false;  // what is below host memory, files too, can be read straight into frames
  bool real_policy = false;
  bool in_place = true;
  bool protect = false;                                  // pages acquired for reading are mapped so
  bool peers = true;                                     // every device can map every other's memory
  std::optional<std::uint64_t> page_bytes = kPageBytes;  // nullopt: by region size
};

// One launching thread with its stream.
struct Actor {
  ThreadSlot* slot = nullptr;
  CUstream stream = nullptr;
  StreamRecord* record = nullptr;
};

// A range of one region, as an acquire names it.
struct Range {
  Region* region = nullptr;
  std::uint32_t first = 0;
  std::uint32_t count = 1;
  Access access = Access::write;
  bool discard = false;
  bool leave_host = false;
};
inline Range reading(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::read, false, false};
}
// As a launch names it that does not say what it writes.
inline Range launching(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::read, false, true};
}
inline Range writing(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::write, false, false};
}
inline Range discarding(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::write, true, false};
}

// An acquire under way: its hold is published; a miss waits in the mover.
struct Acquire {
  Actor* actor = nullptr;
  Range range;
  std::uint32_t hold = 0;
  bool hit = false;
  AcquireRequest::Want want;
  AcquireRequest request;
  bool done() const { return hit || request.done(); }
};

// Sees all of a mover.
struct MoverInspector {
  explicit MoverInspector(Mover& of) : mover(of) {}
  Mover& mover;
  tiers::FramePool& hbm(int device = 0) { return mover.devices_[std::size_t(device)]->hbm; }
  std::size_t in_flight() const { return mover.in_flight_.size(); }
  bool lost() const { return mover.lost_.has_value(); }
  // For a lost device, whose mappings the mover leaves: the emulated machine lives on.
  void unmap_all(const gpu::Driver& driver);
  const MoverCounters& counters() const { return mover.counters_; }
  const std::string& spill_error() const { return mover.spill_error_; }
  // Of regions that are allocated from now on.
  void set_page_bytes(std::uint64_t bytes) { mover.config_.page_bytes = bytes; }
  // Everything that must be true between two steps.
  void check(const gpu::Driver& driver, const tiers::Tier* spill, const ScriptedPolicy* policy, bool driver_alive);

 private:
  void check_region(const Region& region, const gpu::Driver& driver, bool driver_alive);
  void check_mapping(const Region& region, std::uint32_t index, const gpu::Driver& driver);
  void check_frames();
  void check_slots();
  void check_lending();
  void check_spilled(const tiers::Tier& spill);
  void check_sums();
  template <class Each>
  void each_page(Each&& each);
};

class MoverTest : public ::testing::Test {
 protected:
  ~MoverTest() override;
  void start(const MachineShape& shape = {});
  // Ends all regions and gives everything back; what is left over is a failure.
  void finish();
  void TearDown() override;

  Actor& actor(int device = 0);
  Region& allocate(std::uint32_t pages, int device = 0, bool shared = false);
  Result<Region*> try_allocate(std::uint32_t pages, int device = 0, bool shared = false);
  Region& map_file(std::uint32_t pages);  // page i of the first holds i
  Status free(Region& region, Actor* last_user = nullptr);
  Status advise(const Range& range, vmem_advice advice);
  void prefetch(const Range& range);
  void evict(const Range& range) { EXPECT_TRUE(advise(range, VMEM_ADVISE_EVICT)); }
  void evict_to_the_end(const Range& range) {  // and its copy out is complete
    evict(range);
    settle();
  }

  // Posts and steps until the answer; `limit` steps without one are a hang, reported as VMEM_ERROR_TIMEOUT.
  Status ask(Request& request);
  void steps(int count = 20);
  template <class Until>
  bool step_until(Until&& until);
  // Steps until nothing is under way that needs no more than time.
  void settle();

  // An acquire and its halves.
  std::unique_ptr<Acquire> begin(Actor& actor, const Range& range);
  Status complete(Acquire& acquire);  // steps until served; on success the actor's stream waits for the bytes
  Status acquire(Actor& actor, const Range& range);
  void release(Actor& actor, const Range& range);
  void log_use(Actor& actor, const Range& range);   // the first half of a release
  void withdraw(Actor& actor, const Range& range);  // the second

  // Work on pages.
  void fill(Actor& actor, const Range& range, unsigned char value);
  void write(Actor& actor, const Range& range, unsigned char value);             // acquire, fill, release
  void write_to_the_end(Actor& actor, const Range& range, unsigned char value);  // and nobody uses it any more
  // Reads through an acquire, by GPU work.
  void expect_bytes(Actor& actor, Region& region, std::uint32_t page, unsigned char value);
  // Reads where the page lies, through the path of vmem_read.
  void expect_stored(Region& region, std::uint32_t page, unsigned char value);
  Status cpu_write(Region& region, std::uint32_t page, unsigned char value);
  // Everything queued so far is complete, and an event says so.
  void finish_work(Actor& actor);
  Gate gate(Actor& actor) { return Gate(*driver, actor.stream); }

  const Page& page(const Region& region, std::uint32_t index) const { return region.pages[index]; }
  PageState state(const Region& region, std::uint32_t index) const {
    return PageState(region.pages[index].state.load());
  }
  bool in_hbm(const Region& region, std::uint32_t index) const { return page(region, index).mapped == Mapped::frame; }
  bool in_host(const Region& region, std::uint32_t index) const {
    return page(region, index).slot_current() && page(region, index).near == 0;
  }
  bool in_peer(const Region& region, std::uint32_t index) const {
    return page(region, index).slot_current() && page(region, index).near == 1;
  }
  bool below(const Region& region, std::uint32_t index) const { return page(region, index).spilled_current(); }
  bool in_place(const Region& region, std::uint32_t index) const { return page(region, index).mapped == Mapped::slot; }
  void check();

  MachineShape shape;
  std::shared_ptr<const gpu::Driver> driver;   // the emulated one itself
  std::unique_ptr<gpu::FaultInjector> faults;  // what the code under test calls goes through it
  std::vector<gpu::PrimaryContext> contexts;
  CUdeviceptr reserved = 0;
  std::unique_ptr<pagetable::AddressSpace> space;
  std::unique_ptr<pagetable::ThreadRegistry> threads;
  std::unique_ptr<StreamTable> streams;
  std::unique_ptr<ScriptedTier> tier;
  std::unique_ptr<ScriptedTier> lent;    // with lent_pages
  std::unique_ptr<ScriptedSpill> spill;  // with spill_pages
  std::unique_ptr<ScriptedFiles> files;  // with files
  ScriptedPolicy* policy = nullptr;      // null with the real one
  std::unique_ptr<Mover> mover;
  std::optional<MoverInspector> inside;
  std::uint64_t now_us = 1'000'000;
  std::uint64_t acquire_wait_us = 1000;
  std::uint64_t call_wait_us = 30'000'000;

 private:
  std::unique_ptr<ScriptedTier> make_near(CUmemLocation location, std::uint32_t pages);
  void make_mover();
  std::byte* address(const Region& region, std::uint32_t page) const;

  std::deque<Actor> actors_;
};

template <class Until>
bool MoverTest::step_until(Until&& until) {
  for (int i = 0; i < 2'000'000; ++i) {
    if (until()) return true;
    if (mover->step() != Mover::Next::again) std::this_thread::yield();
  }
  return false;
}

}  // namespace vmem::migration
