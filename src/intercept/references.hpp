// The addresses that a launch names: every aligned 8-byte word of its parameters that lies in vmem's range.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "intercept/hook.hpp"
#include "intercept/pinned.hpp"
#include "intercept/table_check.hpp"

namespace vmem::intercept {

class References {
 public:
  void begin(const runtime::Runtime& runtime) {
    addresses_.clear();
    facts_ = nullptr;
    base_ = runtime.space_base();
    bytes_ = runtime.space_bytes();
    pinned_ = pinned_memory().bounds();
  }
  std::span<const std::uintptr_t> addresses() const { return addresses_; }
  void add(std::uintptr_t address) {
    if (is_ours(address)) addresses_.push_back(address);
  }
  void add_words(const void* from, std::size_t bytes);
  void finish_graph();  // sorted, each once, and no function's
  // The parameters of a launch of `function` (a CUfunction or CUkernel): an array of pointers to them, or the buffer in `extra`.
  void add_parameters(const runtime::Runtime& runtime, CUfunction function, void** parameters, void** extra);
  // What is known of the function whose parameters were added last; null for none.
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

// What is known of the function of a launch.
FunctionFacts& facts_of(const runtime::Runtime& runtime, CUfunction function);

// What the calling thread's launches are described in, one after the other: they do not nest. Kept, so that nothing is allocated.
struct LaunchScratch {
  References references;
  runtime::LaunchHolds holds;
  TableLooks looks;
};
LaunchScratch& launch_scratch();

// Kernels may have been unloaded: their handles may come to mean others.
void forget_layouts();

// Runs `queue`, which queues work on the stream, with all that the references name in place. Failing that, says why.
template <class Queue>
CUresult with_references(runtime::Runtime& runtime, const References& references, CUstream stream, const char* what,
                         Queue&& queue) {
  const auto moves_wait = runtime.hold_back_moves();
  // Asked before anything is held: a use on a stream that is capturing would not end before the capture does, if ever.
  if (references.addresses().empty() || capturing(runtime, stream)) return queue();
  LaunchScratch& scratch = launch_scratch();
  runtime::LaunchHolds& holds = scratch.holds;
  TableLooks& looks = scratch.looks;
  FunctionFacts* const facts = references.facts();
  // What names one thing makes no table that leads to another.
  const bool fills_tables = facts != nullptr && references.addresses().size() > 1 && facts->may_write_pointers();
  looks.learn(runtime);
  if (auto ready = runtime.begin_launch(references.addresses(), stream, fills_tables, holds); !ready)
    return report(what, ready.error());
  note_launch(facts, stream, references.addresses());
  if (facts != nullptr) looks.before(runtime, *facts, references.addresses(), stream);
  const CUresult queued = queue();
  if (queued != CUDA_SUCCESS) {
    looks.forget(runtime);
    runtime.abandon_launch(holds);
    return queued;
  }
  if (facts != nullptr) looks.behind(runtime, *facts, references.addresses(), holds);
  if (auto ended = runtime.end_launch(holds); !ended) return report(what, ended.error());
  return CUDA_SUCCESS;
}

// Runs `real`, which tells the driver of memory that only a graph's launch will use: the driver wants to see memory at the addresses,
// though it only writes them down.
template <class Real>
CUresult with_memory(runtime::Runtime& runtime, const References& references, CUstream stream, const char* what,
                     Real&& real) {
  if (references.addresses().empty()) return real();
  thread_local runtime::LaunchHolds holds;
  if (auto mapped = runtime.begin_recording(references.addresses(), stream, holds); !mapped)
    return report(what, mapped.error());
  const CUresult result = real();
  runtime.abandon_launch(holds);
  return result;
}

}  // namespace vmem::intercept
