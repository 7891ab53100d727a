// Detects which kernels fill pointer tables, and with which pointers, by inspecting memory. After a
// launch, vmem copies to the CPU the small allocations that it named, and parts of large ones
// around the named addresses. A kernel is inspected on its 1st, 2nd, 4th, 8th... counted launch
// (FunctionFacts::launches), before and after it: a changed word that is an address was written by
// the kernel. A kernel seen to write addresses is inspected on every launch. Until a kernel has
// been inspected, or when an inspection of one that writes addresses was skipped, every argument
// may hold a table of all arguments.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

// Findings about one kernel's launches: whether it writes pointers to allocations into its
// arguments. Any thread; a race may count two launches as one.
struct FunctionFacts {
  // launches that named at least two addresses, or whose addresses were not read
  std::atomic<std::uint32_t> launches{0};
  // inspect this launch, or the first later one possible; 0 for a kernel that writes pointers
  std::atomic<std::uint32_t> next_look{1};
  std::atomic<bool> looked{false};  // one launch has been inspected
  std::atomic<bool> writes_pointers{false};
  std::string name;                         // the driver's name for the kernel
  std::atomic<std::uint32_t> traced_as{0};  // its number in the trace; 0: none yet
  // If the launch's addresses are not needed, counts it and returns true: the kernel writes no
  // pointers and no inspection is due.
  bool pass_unlooked() {
    const std::uint32_t launch = launches.load(std::memory_order_relaxed) + 1;
    if (may_write_pointers() || launch >= next_look.load(std::memory_order_relaxed)) return false;
    launches.store(launch, std::memory_order_relaxed);
    return true;
  }
  bool may_write_pointers() const {
    return writes_pointers.load(std::memory_order_relaxed) || !looked.load(std::memory_order_relaxed);
  }
};

// A thread's inspections in flight.
class TableLooks {
 public:
  TableLooks();
  ~TableLooks();
  TableLooks(const TableLooks&) = delete;
  TableLooks& operator=(const TableLooks&) = delete;

  bool under_way() const { return under_way_; }
  // Before a launch: evaluates the inspections that have completed.
  void learn(const runtime::Runtime& runtime) {
    if (under_way_) learn_completed(runtime);
  }
  // Around queueing the launch, while its arguments are held.
  void before(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
              CUstream stream) {
    if (addresses.size() < 2 || !runtime.launches().follows_tables()) return;
    const std::uint32_t launch = facts.launches.load(std::memory_order_relaxed) + 1;
    facts.launches.store(launch, std::memory_order_relaxed);
    if (launch < facts.next_look.load(std::memory_order_relaxed)) return;
    look_before(runtime, facts, addresses, stream);
  }
  void after(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
             const runtime::LaunchHolds& holds) {
    if (addresses.size() < 2 || !runtime.launches().follows_tables() || (!begun_ && !facts.may_write_pointers()))
      return;
    look_after(runtime, facts, addresses, holds);
  }
  // The launch was not queued.
  void forget(const runtime::Runtime& runtime) {
    if (begun_) forget_begun(runtime);
  }

 private:
  class Impl;
  void learn_completed(const runtime::Runtime& runtime);
  void look_before(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                   CUstream stream);
  void look_after(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                  const runtime::LaunchHolds& holds);
  void forget_begun(const runtime::Runtime& runtime);
  void update();
  bool under_way_ = false;  // an inspection is in flight
  bool begun_ = false;      // an inspection of the current launch has begun
  std::unique_ptr<Impl> impl_;
};

}  // namespace vmem::intercept
