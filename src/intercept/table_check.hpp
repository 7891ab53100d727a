// Finds out which kernels fill pointer tables, and what is in these, by looking at memory: the small allocations that a launch named, and
// what lies behind its pointers into large ones, are copied to the CPU behind the launch. A function is looked at on its first launch that
// names two addresses, on its second, fourth, eighth and so on, before and behind: what changed and is an address it wrote. A function
// that was seen to write addresses is looked at on every launch. Until the first verdict, and where one that writes addresses could not be
// looked at, what it named is taken for tables of all that it named.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "runtime/runtime.hpp"

namespace vmem::intercept {

// What launches of a function have shown: whether it writes pointers to allocations into what it names.
struct FunctionFacts {
  std::atomic<std::uint32_t> launches{0};  // that named two addresses
  std::atomic<std::uint32_t> next_look{
      1};  // at this launch, or the first later one that can be looked at; 0 for one that writes pointers
  std::atomic<bool> looked{false};  // at what one of them wrote
  std::atomic<bool> writes_pointers{false};
  std::string name;  // as the driver has it
  // A launch may be told of without its addresses: it writes no pointers, and nobody wants to look at it. Counts it, if so.
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

// A thread's looks under way.
class TableLooks {
 public:
  TableLooks();
  ~TableLooks();
  TableLooks(const TableLooks&) = delete;
  TableLooks& operator=(const TableLooks&) = delete;

  // Before a launch: takes in what looks have shown by now.
  bool under_way() const { return under_way_; }
  void learn(const runtime::Runtime& runtime) {
    if (under_way_) take_in(runtime);
  }
  // Around queueing the launch, while what it names is held.
  void before(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
              CUstream stream) {
    if (addresses.size() < 2 || !runtime.follows_tables()) return;
    // Two threads may count two launches as one.
    const std::uint32_t launch = facts.launches.load(std::memory_order_relaxed) + 1;
    facts.launches.store(launch, std::memory_order_relaxed);
    if (launch < facts.next_look.load(std::memory_order_relaxed)) return;
    look_before(runtime, facts, addresses, stream);
  }
  void behind(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
              const runtime::LaunchHolds& holds) {
    if (addresses.size() < 2 || !runtime.follows_tables() || (!begun_ && !facts.may_write_pointers())) return;
    look_behind(runtime, facts, addresses, holds);
  }
  // It was not queued.
  void forget(const runtime::Runtime& runtime) {
    if (begun_) give_up(runtime);
  }

 private:
  class Impl;
  void take_in(const runtime::Runtime& runtime);
  void look_before(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                   CUstream stream);
  void look_behind(const runtime::Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                   const runtime::LaunchHolds& holds);
  void give_up(const runtime::Runtime& runtime);
  void update();
  bool under_way_ = false;  // there is something to learn
  bool begun_ = false;      // a look, of the launch that is being made
  std::unique_ptr<Impl> impl_;
};

}  // namespace vmem::intercept
