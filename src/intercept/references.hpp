// The addresses that a launch names: every aligned 8-byte word of its parameters inside vmem's
// address range.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "intercept/hook.hpp"
#include "intercept/pinned.hpp"
#include "intercept/table_check.hpp"

namespace vmem::intercept {

class References {
 public:
  void begin(const runtime::Runtime& runtime) {
    addresses_.clear();
    facts_ = nullptr;
    base_ = runtime.space().base();
    bytes_ = runtime.space().bytes();
    pinned_ = pinned_memory().bounds();
  }
  std::span<const std::uintptr_t> addresses() const { return addresses_; }
  void add(std::uintptr_t address) {
    if (is_ours(address)) addresses_.push_back(address);
  }
  void add_words(const void* from, std::size_t bytes);
  void finish_graph();  // sorts, removes duplicates, clears the function
  // Adds the parameters of a launch of `function` (a CUfunction or CUkernel): an array of pointers
  // to them, or the buffer in `extra`.
  void add_parameters(const runtime::Runtime& runtime, CUfunction function, void** parameters, void** extra);
  // Facts about the function whose parameters were added last; null if none.
  FunctionFacts* facts() const { return facts_; }

 private:
  void add_pinned(std::uintptr_t word);
  void add_word(std::uintptr_t word) {
    if (is_ours(word)) {
      addresses_.push_back(word);
    } else if (word - pinned_.first < pinned_.bytes) [[unlikely]] {
      add_pinned(word);
    }
  }
  bool is_ours(std::uintptr_t address) const { return address - base_ < bytes_; }
  std::vector<std::uintptr_t> addresses_;
  std::uintptr_t base_ = 0;
  std::uint64_t bytes_ = 0;
  PinnedMemory::Bounds pinned_{};
  FunctionFacts* facts_ = nullptr;
};

// What is known of a launched function.
FunctionFacts& facts_of(const runtime::Runtime& runtime, CUfunction function);

// The calling thread's scratch for one launch at a time: launches do not nest. Reused, so that
// launches do not allocate.
struct LaunchScratch {
  References references;
  runtime::LaunchHolds holds;
  TableLooks looks;
};
LaunchScratch& launch_scratch();

// The number in the trace of what a launch runs; 0 without a trace.
std::uint32_t traced_as(runtime::Runtime& runtime, FunctionFacts* facts, const char* what);

// Call when kernels may have been unloaded: their handles may be reused for other kernels.
void forget_layouts();

// Runs `queue`, which queues work on the stream, while all references are in place. On failure,
// reports the reason.
template <class Queue>
CUresult with_references(runtime::Runtime& runtime, const References& references, CUstream stream, const char* what,
                         Queue&& queue) {
  const auto moves_wait = runtime.move_gate().hold_back_moves();
  // Checked before anything is held: a use on a capturing stream would end after the capture, or
  // never.
  if (references.addresses().empty() || capturing(runtime, stream)) return queue();
  LaunchScratch& scratch = launch_scratch();
  runtime::LaunchHolds& holds = scratch.holds;
  TableLooks& looks = scratch.looks;
  FunctionFacts* const facts = references.facts();
  // A launch that names a single address cannot link one table to another allocation.
  const bool fills_tables = facts != nullptr && references.addresses().size() > 1 && facts->may_write_pointers();
  looks.learn(runtime);
  holds.what = traced_as(runtime, facts, what);
  if (auto ready = runtime.launches().begin(references.addresses(), stream, fills_tables, holds); !ready)
    return report(what, ready.error());
  runtime::HeldLaunch held(runtime.launches(), holds);
  note_launch(facts, stream, references.addresses());
  if (facts != nullptr) looks.before(runtime, *facts, references.addresses(), stream);
  const CUresult queued = queue();
  if (queued != CUDA_SUCCESS) {
    looks.forget(runtime);
    return queued;
  }
  held.queued();
  // The work is queued, and must not seem to have failed.
  if (facts != nullptr && !ran_within_memory([&] { looks.after(runtime, *facts, references.addresses(), holds); }))
    log::write_plain(
        "out of host memory: pointers that a kernel wrote into memory may be missed; if the GPU then reports an "
        "illegal address, this is why");
  if (auto ended = held.end(); !ended) return report(what, ended.error());
  return CUDA_SUCCESS;
}

// Runs `real`, which passes the driver addresses that only a later graph launch uses. The driver
// only records the addresses, but requires memory to be mapped there.
template <class Real>
CUresult with_memory(runtime::Runtime& runtime, const References& references, CUstream stream, const char* what,
                     Real&& real) {
  if (references.addresses().empty()) return real();
  thread_local runtime::LaunchHolds holds;
  // The driver refuses fills of memory that is partly in HBM and partly in host memory.
  holds.needs_hbm = true;
  if (auto mapped = runtime.launches().begin_recording(references.addresses(), stream, holds); !mapped)
    return report(what, mapped.error());
  const runtime::HeldLaunch held(runtime.launches(), holds);
  return real();
}

}  // namespace vmem::intercept
