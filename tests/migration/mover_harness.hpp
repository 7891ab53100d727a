// A mover on a small emulated machine, stepped by the test, which also plays the launching threads.
// Each part of HitPath::acquire and release is a call of its own, so a test can write down any
// interleaving. Nothing sleeps: a gate keeps GPU work unfinished, and time is a number.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
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
// In which changes of a page are found.
inline constexpr std::uint64_t kPartBytes = std::uint64_t{64} << 10;
// Of GPU work, between two steps of a stepped machine.
inline constexpr std::size_t kPiecesPerStep = 2;

struct MachineShape {
  int devices = 1;
  std::uint32_t hbm_pages = 4;  // per device, of 2 MiB
  std::uint32_t host_pages = 16;
  std::uint32_t spill_pages = 0;
  // Device 1 lends them to device 0. With two devices the mover manages the lender as well, and
  // lends only memory that device 1's own pages leave free.
  std::uint32_t lent_pages = 0;
  bool files = false;  // read-only regions can be mapped
  // Of host memory, for copies of pages that other nodes published.
  std::uint32_t cache_pages = 1u << 20;
  bool straight = false;  // pages of files and of the spill tier can be read directly into frames
  bool real_policy = false;
  // Replaces the scripted policy, if set.
  std::function<std::unique_ptr<Policy>()> make_policy;
  bool look_ahead = false;  // with the real policy: in front of it, as in production
  bool undeclared = false;  // of regions allocated from now on
  bool shares_pages = false;
  bool tries_in_place = false;
  bool in_place = true;
  bool protect = false;  // acquires for reading map read-only
  bool peers = true;     // devices can map each other's memory
  // GPU work runs only between the mover's steps: a test runs the same every time.
  bool stepped = false;
  std::optional<std::uint64_t> page_bytes = kPageBytes;  // nullopt: by region size
  // nullopt: by what is allocated. With page_bytes all slots are created at the start.
  std::optional<std::uint64_t> host_ahead_bytes = 0;
  trace::Recorder* recorder = nullptr;  // null: no trace
};

// A launching thread and its stream.
struct Actor {
  ThreadSlot* slot = nullptr;
  CUstream stream = nullptr;
  StreamRecord* record = nullptr;
};

// A range of pages of one region.
struct Range {
  Region* region = nullptr;
  std::uint32_t first = 0;
  std::uint32_t count = 1;
  Access access = Access::write;
  bool discard = false;
  bool move_to_hbm = false;
  bool needs_hbm = false;  // with move_to_hbm
};
inline Range reading(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::read, false, false, false};
}
// A launch that does not say whether it writes.
inline Range launching(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::read, false, true, false};
}
inline Range writing(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::write, false, false, false};
}
inline Range discarding(Region& region, std::uint32_t first, std::uint32_t count = 1) {
  return {&region, first, count, Access::write, true, false, false};
}

// An acquire in flight: its hold is published, and a miss waits in the mover.
struct Acquire {
  Actor* actor = nullptr;
  Range range;
  std::uint32_t hold = 0;
  bool hit = false;
  AcquireRequest::Want want;
  AcquireRequest request;
  bool done() const { return hit || request.done(); }
};

// Reads and checks a mover's state through its parts.
struct MoverInspector {
  explicit MoverInspector(Mover& of) : mover(of) {}
  Mover& mover;
  tiers::FramePool& hbm(int device = 0) { return mover.parts().devices[device].hbm; }
  std::size_t in_flight() const { return mover.parts().transfers.size(); }
  bool lost() const { return mover.parts().core.lost.has_value(); }
  // For a lost device: the mover leaves the mappings in place, but the emulated machine lives on.
  void unmap_all(const gpu::Driver& driver);
  const MoverCounters& counters() const { return mover.parts().core.counters; }
  const std::string& spill_error() const { return mover.parts().below.pacing().error(); }
  // Applies to regions allocated from now on.
  void set_page_bytes(std::uint64_t bytes) { mover.parts().core.config.page_bytes = bytes; }
  // Checks every invariant that holds between two steps.
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
  // Frees all regions and the machine. Fails the test if anything is left over.
  void finish();
  void TearDown() override;

  Actor& actor(int device = 0);
  Region& allocate(std::uint32_t pages, int device = 0, bool slab = false);
  Result<Region*> try_allocate(std::uint32_t pages, int device = 0, bool slab = false);
  Region& map_file(std::uint32_t pages);  // every byte of page i of the first file is i
  Status free(Region& region, Actor* last_user = nullptr, bool joint = false);
  Status advise(const Range& range, vmem_advice advice);
  void prefetch(const Range& range);
  void evict(const Range& range) { EXPECT_TRUE(advise(range, VMEM_ADVISE_EVICT)); }
  // Also completes the store.
  void evict_to_the_end(const Range& range) {
    evict(range);
    settle();
  }

  // Posts and steps until the mover answers. Aborts the test program if the mover hangs.
  Status ask(Request& request);
  void steps(int count = 20);
  template <class Until>
  bool step_until(Until&& until);
  // Steps until no transfer is in flight and the mover has no more work.
  void settle();

  // An acquire in two halves, and whole.
  std::unique_ptr<Acquire> begin(Actor& actor, const Range& range);
  // Steps until served. On success the actor's stream waits for the bytes.
  Status complete(Acquire& acquire);
  Status acquire(Actor& actor, const Range& range);
  void release(Actor& actor, const Range& range);
  void log_use(Actor& actor, const Range& range);   // first half of a release
  void withdraw(Actor& actor, const Range& range);  // second half

  // GPU and CPU work on pages.
  void fill(Actor& actor, const Range& range, unsigned char value);
  // Of each page, its first kPartBytes.
  void fill_in_part(Actor& actor, const Range& range, unsigned char value);
  void write(Actor& actor, const Range& range, unsigned char value);  // acquire, fill, release
  // Also completes the work.
  void write_to_the_end(Actor& actor, const Range& range, unsigned char value);
  // Acquires the page and reads it by GPU work.
  void expect_bytes(Actor& actor, Region& region, std::uint32_t page, unsigned char value);
  // The same for a page of which the first kPartBytes were written after the rest.
  void expect_parts(Actor& actor, Region& region, std::uint32_t page, unsigned char first, unsigned char rest);
  // Reads the page where it is stored, as vmem_read does.
  void expect_stored(Region& region, std::uint32_t page, unsigned char value);
  void expect_stored_parts(Region& region, std::uint32_t page, unsigned char first, unsigned char rest);
  Status cpu_write(Region& region, std::uint32_t page, unsigned char value);
  // Synchronizes the stream and closes its epoch.
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
  std::shared_ptr<const gpu::Driver> driver;   // the emulated driver
  std::unique_ptr<gpu::FaultInjector> faults;  // the code under test calls the driver through it
  std::vector<gpu::PrimaryContext> contexts;
  CUdeviceptr reserved = 0;
  std::unique_ptr<pagetable::AddressSpace> space;
  std::unique_ptr<pagetable::ThreadRegistry> threads;
  std::unique_ptr<StreamTable> streams;
  std::unique_ptr<ScriptedTier> tier;
  std::unique_ptr<ScriptedTier> lent;    // null without lent_pages
  std::unique_ptr<ScriptedSpill> spill;  // null without spill_pages
  // A tier of the test's own in place of `spill`: set before `start`, and it outlives the mover.
  tiers::Tier* below_host = nullptr;
  std::unique_ptr<ScriptedFiles> files;  // null without files
  ScriptedPolicy* policy = nullptr;      // null with real_policy or make_policy
  std::size_t left_ahead = 0;            // pages that look-ahead has named to leave
  std::unique_ptr<Mover> mover;
  std::optional<MoverInspector> inside;
  std::uint64_t now_us = 1'000'000;
  std::uint64_t acquire_wait_us = 1000;
  std::uint64_t call_wait_us = 30'000'000;

 private:
  std::unique_ptr<ScriptedTier> make_near(CUmemLocation location, std::uint32_t pages);
  void make_mover();
  void let_gpu_work();
  std::byte* address(const Region& region, std::uint32_t page) const;

  std::mutex mover_life_;  // held to make and end the mover: tiers' threads poke it
  std::deque<Actor> actors_;
};

template <class Until>
bool MoverTest::step_until(Until&& until) {
  for (int i = 0; i < 2'000'000; ++i) {
    if (until()) return true;
    if (mover->step() != Mover::Next::again || shape.stepped) let_gpu_work();
  }
  return false;
}

}  // namespace vmem::migration
