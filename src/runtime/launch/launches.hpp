// Launches of programs that do not call vmem: each names whole allocations.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "base/memory_reserve.hpp"
#include "base/status.hpp"
#include "runtime/launch/launch_holds.hpp"
#include "runtime/launch/tables/thread_tables.hpp"
#include "runtime/memory/move_gate.hpp"
#include "runtime/memory/readiness.hpp"
#include "runtime/memory/thread_slots.hpp"
#include "runtime/suballocator.hpp"
#include "trace/recorder.hpp"

namespace vmem::runtime {

// Any thread; the launching thread begins and ends a launch.
class Launches {
 public:
  // strict: one launch at a time; everything that it does not name is unmapped meanwhile.
  enum class Order { concurrent, strict };
  struct Parts {
    const gpu::Driver& driver;
    const pagetable::AddressSpace& space;
    migration::Mover& mover;
    migration::StreamTable& streams;
    ThreadSlots& slots;
    const Suballocator& small;
    const Readiness& readiness;
    MoveGate& gate;
    const trace::Recorder* recorder;  // null: no trace
    std::uint32_t traced_epoch;       // launches: the option trace_epoch
  };
  // `window`: see PointerTables::begin; 0: tables are not followed.
  Launches(const Parts& parts, Order order, std::uint32_t window) : parts_(parts), order_(order), window_(window) {}

  // A launch on `stream` names these addresses, each standing for its whole allocation; addresses
  // in no live allocation are skipped. Named memory stays mapped and usable from the return of
  // `begin` until `end`. `fills_tables`: the kernel may write some of the addresses into the named
  // small allocations, which makes those pointer tables (pointer_tables.hpp). In drained mode the
  // caller holds back moves (MoveGate::hold_back_moves) from before begin until the work is queued.
  // After an error or std::bad_alloc nothing is held. After success call end or abandon, once.
  Status begin(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables, LaunchHolds& holds);
  // Fast path: admits a launch without looking up its allocations. REQUIRES: the kernel writes no
  // pointer tables. Succeeds only if every page is resident, use tracking is off and no pointer
  // table concerns the launch. `named`: the launch's addresses if known: only tables that concern
  // them count, and a trace needs them. On false nothing is held: call begin.
  bool begin_if_all_resident(vmem_stream stream, const std::optional<std::span<const std::uintptr_t>>& named,
                             LaunchHolds& holds);
  // False: begin_if_all_resident would fail on every device.
  bool any_device_all_resident() const { return parts_.mover.all_resident() != 0; }
  // The launch was queued: logs its uses, then clears its holds. After an error or std::bad_alloc
  // that is done, too.
  Status end(LaunchHolds& holds);
  static void abandon(LaunchHolds& holds);  // the launch was not queued
  // Like begin, for work recorded into a graph: named memory is mapped, possibly with loads in
  // flight. The graph's launch must name it again. End with abandon.
  Status begin_recording(std::span<const std::uintptr_t> addresses, vmem_stream stream, LaunchHolds& holds);

  // For traces: the program recorded an event on the stream, or made the stream wait for it.
  // `event`: its number in the trace.
  void note_signal(vmem_stream stream, std::uint32_t event, bool waits) const;

  bool strict() const { return order_ == Order::strict; }
  bool follows_tables() const { return window_ != 0; }
  // The calling thread's; null if tables are not followed or the thread is ending.
  PointerTables* pointer_tables() const { return follows_tables() ? thread_tables() : nullptr; }

 private:
  using Source = LaunchHolds::Source;
  enum class Work { runs, recorded };
  void announce(std::uintptr_t address, Source source, LaunchHolds& holds) const;
  void announce_small(pagetable::Region& region, std::uintptr_t address, Source source, LaunchHolds& holds) const;
  static void announce_span(pagetable::Region& region, std::uint32_t granule, std::uintptr_t address, Source source,
                            LaunchHolds& holds);
  void announce_all(std::span<const std::uintptr_t> addresses, LaunchHolds& holds) const;
  bool records() const { return parts_.recorder != nullptr && !parts_.recorder->ended(); }
  void time_for_trace(const LaunchHolds& holds) const;
  void note_for_trace(std::span<const std::uintptr_t> addresses, LaunchHolds& holds) const;
  bool find_all(std::span<const std::uintptr_t> addresses, PointerTables& tables, bool fills_tables,
                LaunchHolds& holds) const;
  bool usable_now(pagetable::Region& region, std::uintptr_t address, Source source, std::uint32_t device) const;
  Usability check_announced(LaunchHolds& holds) const;
  Status hold_and_make_ready(std::span<const std::uintptr_t> addresses, vmem_stream stream, bool fills_tables,
                             LaunchHolds& holds);
  Status hold_and_map(std::span<const std::uintptr_t> addresses, vmem_stream stream, LaunchHolds& holds);
  Status make_ready(Usability worst, vmem_stream stream, LaunchHolds& holds);
  Status bring_in(const LaunchHolds& holds, Work work);
  Status hide_others();
  Status finish_alone(migration::StreamRecord& record) const;

  const Parts parts_;
  const Order order_;
  const std::uint32_t window_;
  std::mutex alone_;  // strict: held from a launch's beginning to its completion
};

// A launch that has begun. Its destructor does what is left to do: `end` if the work was queued,
// else `abandon`.
class HeldLaunch {
 public:
  HeldLaunch(Launches& launches, LaunchHolds& holds) : launches_(launches), holds_(&holds) {}
  ~HeldLaunch() {
    if (holds_ == nullptr) return;
    if (!queued_) {
      // The epoch's time must not begin at a launch that did not run.
      if (holds_->record != nullptr) holds_->record->has_begin.store(false, std::memory_order_relaxed);
      Launches::abandon(*holds_);
    } else {
      (void)ran_within_memory([this] { (void)launches_.end(*holds_); });
    }
  }
  HeldLaunch(const HeldLaunch&) = delete;
  HeldLaunch& operator=(const HeldLaunch&) = delete;

  void queued() { queued_ = true; }    // all of the work, or perhaps a part
  void forget() { holds_ = nullptr; }  // the runtime has ended, or the holds have to stay
  Status end() { return launches_.end(*std::exchange(holds_, nullptr)); }

 private:
  Launches& launches_;
  LaunchHolds* holds_;
  bool queued_ = false;
};

}  // namespace vmem::runtime
