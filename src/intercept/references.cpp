#include "intercept/references.hpp"

#include <algorithm>
#include <atomic>
#include <boost/container/small_vector.hpp>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "base/log.hpp"
#include "intercept/pinned.hpp"

namespace vmem::intercept {
namespace {

constexpr std::size_t kWord = sizeof(std::uintptr_t);

std::uintptr_t word_at(const void* place) {
  std::uintptr_t word = 0;
  std::memcpy(&word, place, kWord);
  return word;
}

struct Parameter {
  std::uint16_t index;
  std::uint16_t words;  // enough: a launch's parameters are 32 KiB at most
  bool operator==(const Parameter&) const = default;
};
// The parameters that can hold an address, next to the function's other facts for cache locality.
using Parameters = boost::container::small_vector<Parameter, 12>;
struct Layout {
  Parameters parameters;
  mutable FunctionFacts facts;
};

// Layouts by function. Reads take no lock; when a probe sequence is full, the first slot is
// replaced.
class LayoutCache {
 public:
  const Layout* find(CUfunction function) const {
    const std::uint64_t generation = generation_.load(std::memory_order_acquire);
    for (std::size_t i = slot_of(function), tries = 0; tries < kTries; ++tries, i = (i + 1) % kSlots) {
      const Entry& entry = entries_[i];
      if (entry.function.load(std::memory_order_acquire) != function) continue;
      const Known* known = entry.known.load(std::memory_order_acquire);
      if (known != nullptr && known->generation.load(std::memory_order_acquire) == generation) return &known->layout;
    }
    return nullptr;
  }
  // Facts live as long as the process: inspections in flight refer to them. A forgotten function
  // found again with the same name and parameters gets its earlier facts back.
  const Layout* add(CUfunction function, Parameters parameters, std::string name) {
    const std::lock_guard lock(mutex_);
    const std::uint64_t generation = generation_.load();
    std::size_t chosen = kSlots;
    for (std::size_t i = slot_of(function), tries = 0; tries < kTries; ++tries, i = (i + 1) % kSlots) {
      const CUfunction at = entries_[i].function.load();
      const Known* there = entries_[i].known.load();
      const bool forgotten = there == nullptr || there->generation.load() != generation;
      if (at == function && there != nullptr && there->layout.facts.name == name &&
          there->layout.parameters == parameters) {
        there->generation.store(generation, std::memory_order_release);
        return &there->layout;
      }
      if (chosen == kSlots && (at == nullptr || at == function || forgotten)) chosen = i;
    }
    if (chosen == kSlots) chosen = slot_of(function);
    kept_.push_back(std::make_unique<Known>());
    Known* known = kept_.back().get();
    known->generation = generation;
    known->layout.parameters = std::move(parameters);
    known->layout.facts.name = std::move(name);
    // A reader must not pair the new function with the old layout: clear the layout first.
    entries_[chosen].known.store(nullptr, std::memory_order_release);
    entries_[chosen].function.store(function, std::memory_order_release);
    entries_[chosen].known.store(known, std::memory_order_release);
    return &known->layout;
  }
  void forget() { generation_.fetch_add(1, std::memory_order_acq_rel); }

 private:
  static constexpr std::size_t kSlots = 1u << 14;
  static constexpr std::size_t kTries = 16;
  struct alignas(64) Known {
    mutable std::atomic<std::uint64_t> generation{0};
    Layout layout;
  };
  struct Entry {
    std::atomic<CUfunction> function{nullptr};
    std::atomic<const Known*> known{nullptr};
  };
  static std::size_t slot_of(CUfunction function) {
    return (reinterpret_cast<std::uintptr_t>(function) * 0x9e3779b97f4a7c15u) >> 50;
  }
  std::vector<Entry> entries_{kSlots};
  std::atomic<std::uint64_t> generation_{1};
  std::mutex mutex_;
  // never freed: readers may still use a forgotten layout
  std::vector<std::unique_ptr<Known>> kept_;
};

LayoutCache& layouts() {
  static auto* cache = new LayoutCache;
  return *cache;
}

std::string ask_name(const gpu::Driver& driver, CUfunction function) {
  const char* name = nullptr;
  CUresult asked = driver->cuFuncGetName == nullptr ? CUDA_ERROR_NOT_SUPPORTED : driver->cuFuncGetName(&name, function);
  // Launches also accept a CUkernel as the function.
  if (asked != CUDA_SUCCESS && driver->cuKernelGetName != nullptr)
    asked = driver->cuKernelGetName(&name, reinterpret_cast<CUkernel>(function));
  return asked == CUDA_SUCCESS && name != nullptr ? name : "a kernel without a name";
}

// No driver call returns a kernel's parameter count.
Parameters ask_parameters(const gpu::Driver& driver, CUfunction function) {
  Parameters parameters;
  for (std::uint16_t i = 0;; ++i) {
    std::size_t offset = 0, bytes = 0;
    CUresult result = driver->cuFuncGetParamInfo(function, i, &offset, &bytes);
    // Launches also accept a CUkernel as the function.
    if (result != CUDA_SUCCESS && driver->cuKernelGetParamInfo != nullptr)
      result = driver->cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), i, &offset, &bytes);
    if (result != CUDA_SUCCESS) return parameters;
    if (bytes >= kWord) parameters.push_back({i, std::uint16_t(bytes / kWord)});
  }
}

const Layout& layout_of(const gpu::Driver& driver, CUfunction function) {
  const Layout* known = layouts().find(function);
  return known != nullptr ? *known
                          : *layouts().add(function, ask_parameters(driver, function), ask_name(driver, function));
}

// A thread-local pointer costs one look-up, a thread-local object with a destructor several.
constinit thread_local LaunchScratch* scratch = nullptr;
struct ScratchOwner {
  std::unique_ptr<LaunchScratch> mine = std::make_unique<LaunchScratch>();
  ~ScratchOwner() { scratch = nullptr; }
};

}  // namespace

LaunchScratch& launch_scratch() {
  if (scratch == nullptr) [[unlikely]] {
    // After the owner's destruction, launches from other destructors are few: this one leaks.
    thread_local bool made = false;
    thread_local ScratchOwner owner;
    scratch = std::exchange(made, true) ? new LaunchScratch : owner.mine.get();
  }
  return *scratch;
}

PinnedMemory& pinned_memory() {
  static auto* memory = new PinnedMemory;
  return *memory;
}

PinnedMemory& write_combined_memory() {
  static auto* memory = new PinnedMemory;
  return *memory;
}

std::uint32_t traced_as(runtime::Runtime& runtime, FunctionFacts* facts, const char* what) {
  trace::Recorder* const recorder = runtime.recorder();
  if (recorder == nullptr) [[likely]]
    return 0;
  if (facts == nullptr) return recorder->number_of(what);
  std::uint32_t number = facts->traced_as.load(std::memory_order_relaxed);
  if (number == 0) {
    number = recorder->number_of(facts->name);
    facts->traced_as.store(number, std::memory_order_relaxed);
  }
  return number;
}

void forget_layouts() { layouts().forget(); }

FunctionFacts& facts_of(const runtime::Runtime& runtime, CUfunction function) {
  return layout_of(runtime.driver(), function).facts;
}

void References::add_words(const void* from, std::size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  const auto* const end = at + bytes / kWord * kWord;
  const auto matters = [&](std::uintptr_t word) { return is_ours(word) || word - pinned_.first < pinned_.bytes; };
  while (at < end) {
    // Most words of long tables are no addresses: skip 16 words at a time without a branch.
    constexpr std::size_t kStride = 16 * kWord;
    if (std::size_t(end - at) >= kStride) {
      bool any = false;
      for (std::size_t i = 0; i < kStride; i += kWord) any |= matters(word_at(at + i));
      if (!any) {
        at += kStride;
        continue;
      }
    }
    const auto* const stop = std::min(end, at + kStride);
    for (; at < stop; at += kWord) add_word(word_at(at));
  }
}

void References::add_pinned(std::uintptr_t word) {
  pinned_memory().each_word(
      word, [&](std::uintptr_t entry) { return is_ours(entry); },
      [&](std::uintptr_t entry) { addresses_.push_back(entry); });
}

void References::finish_graph() {
  facts_ = nullptr;
  std::ranges::sort(addresses_);
  const auto repeated = std::ranges::unique(addresses_);
  addresses_.erase(repeated.begin(), repeated.end());
}

void References::add_parameters(const runtime::Runtime& runtime, CUfunction function, void** parameters, void** extra) {
  pinned_ = pinned_memory().bounds();  // a graph's parameters are added long after begin()
  if (parameters != nullptr) {
    const Layout& layout = layout_of(runtime.driver(), function);
    facts_ = &layout.facts;
    for (const Parameter& each : layout.parameters) {
      if (each.words == 1) {
        add_word(word_at(parameters[each.index]));
      } else {
        add_words(parameters[each.index], each.words * kWord);
      }
    }
    return;
  }
  if (extra == nullptr) return;
  facts_ = &layout_of(runtime.driver(), function).facts;
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  for (void** at = extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (*at == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = at[1];
    if (*at == CU_LAUNCH_PARAM_BUFFER_SIZE) bytes = *static_cast<const std::size_t*>(at[1]);
  }
  if (buffer != nullptr) add_words(buffer, bytes);
}

}  // namespace vmem::intercept
