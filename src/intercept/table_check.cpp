#include "intercept/table_check.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "base/log.hpp"
#include "gpu/handles.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

// Small allocations are looked at as a whole; of large ones so much behind a pointer; of a launch so much in all.
constexpr std::size_t kInLargeBytes = 16 << 10;
constexpr std::size_t kBufferBytes = 2 << 20;
constexpr std::size_t kChecksMax = 16;

// The calling thread's looks under way. Ends with the thread, and leaves its buffers: the process has few such threads, and copies
// into them may be under way.
class Checks {
 public:
  void begin(Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
             const runtime::LaunchHolds& holds, CUstream stream) {
    // What a table that it was given leads to may have been copied into another.
    auto reached = runtime.allocations_among(addresses);
    reached.insert(reached.end(), holds.feared().begin(), holds.feared().end());
    std::ranges::sort(reached);
    const auto repeated = std::ranges::unique(reached);
    reached.erase(repeated.begin(), repeated.end());
    Check check{&facts, context_of(runtime), stream, nullptr, nullptr, {}, nullptr};
    // The driver's copies do not read host memory that is mapped in HBM's place.
    if (checks_.size() < kChecksMax && Runtime::all_in_hbm(holds) && copy_out(runtime, check, addresses, stream)) {
      std::vector<std::uintptr_t> tables;
      for (const Table& table : check.tables) tables.push_back(table.base);
      check.look = runtime.look_at_pointer_tables(tables, reached);
      if (check.look != nullptr) checks_.push_back(std::move(check));
      return;
    }
    // Nobody will look; of what writes pointers it is believed until somebody does.
    if (!facts.writes_pointers.load(std::memory_order_relaxed)) return;
    for (const std::uintptr_t address : addresses) {
      if (const auto found = runtime.allocation_at(address))
        runtime.believe_pointer_table(runtime.is_small(address) ? found->base : address, reached);
    }
  }

  // Those of a stream end in its order, and what is known of a table is learnt in it. A call to the driver costs as much as the rest of a
  // launch: every few launches as many looks are asked after as turn out to be over, and one of each stream that is not.
  void finish(const Runtime& runtime) {
    if (++launches_ % kLaunchesPerQuery != 0) return;
    const gpu::RelaxedCapture relaxed(runtime.driver());
    busy_.clear();
    std::erase_if(checks_, [&](const Check& check) {
      if (std::ranges::find(busy_, check.stream) != busy_.end()) return false;
      if (runtime.driver()->cuEventQuery(check.event) != CUDA_SUCCESS) {
        busy_.push_back(check.stream);
        return false;
      }
      learn(runtime, check);
      return true;
    });
  }
  bool any() const { return !checks_.empty(); }

 private:
  struct Table {
    std::uintptr_t base;
    std::size_t offset, bytes;
    bool small;  // the whole of an allocation; in a large one a table ends where its pointers end
  };
  struct Check {
    FunctionFacts* facts;
    CUcontext context;
    CUstream stream;
    CUevent event;
    std::byte* buffer;
    std::vector<Table> tables;
    std::shared_ptr<runtime::PointerTables::Look> look;
  };

  void learn(const Runtime& runtime, const Check& check) {
    for (const Table& table : check.tables) {
      const auto words = words_of(runtime, check, table);
      const bool whole = table.small || words.size() * sizeof(std::uintptr_t) < table.bytes;
      const bool fresh = runtime.settle_pointer_table(table.base, *check.look, words, whole);
      if (fresh && !check.facts->writes_pointers.exchange(true, std::memory_order_relaxed))
        VMEM_LOG_DEBUG("{} fills pointer tables", check.facts->name);
    }
    check.facts->looked.store(true, std::memory_order_relaxed);
    spare_events_[check.context].push_back(check.event);
    spare_buffers_.push_back(check.buffer);
  }

  std::span<const std::uintptr_t> words_of(const Runtime& runtime, const Check& check, const Table& table) {
    words_.resize(table.bytes / sizeof(std::uintptr_t));
    std::memcpy(words_.data(), check.buffer + table.offset, words_.size() * sizeof(std::uintptr_t));
    if (table.small) return words_;
    const auto end = std::ranges::find_if(words_, [&](std::uintptr_t word) { return !ours(&runtime, word); });
    return {words_.begin(), end};
  }

  // False: nothing was copied, or not to the end; what it had is given back or left to the driver.
  bool copy_out(Runtime& runtime, Check& check, std::span<const std::uintptr_t> addresses, CUstream stream) {
    const auto& driver = runtime.driver();
    check.event = take_event(runtime, check.context);
    check.buffer = take_buffer(runtime);
    std::size_t used = 0;
    bool copied = check.event != nullptr && check.buffer != nullptr;
    for (const std::uintptr_t address : addresses) {
      const auto found = copied ? runtime.allocation_at(address) : std::nullopt;
      if (!found) continue;
      const bool small = runtime.is_small(address);
      const std::uintptr_t base = small ? found->base : address;
      const std::size_t there = found->base + found->bytes - base;
      const std::size_t bytes = small ? there : std::min(there, kInLargeBytes);
      const bool known = std::ranges::find(check.tables, base, &Table::base) != check.tables.end();
      if (known || base % sizeof(std::uintptr_t) != 0 || used + bytes > kBufferBytes) continue;
      copied = driver->cuMemcpyDtoHAsync(check.buffer + used, base, bytes, stream) == CUDA_SUCCESS;
      if (copied) check.tables.push_back({base, used, bytes, small});
      used += bytes;
    }
    if (copied && !check.tables.empty() && driver->cuEventRecord(check.event, stream) == CUDA_SUCCESS) return true;
    if (check.event != nullptr) (void)driver->cuEventDestroy(check.event);
    // A copy may be under way into the buffer; then it is given up.
    if (check.buffer != nullptr && check.tables.empty()) spare_buffers_.push_back(check.buffer);
    return false;
  }

  static CUcontext context_of(const Runtime& runtime) {
    CUcontext context = nullptr;
    (void)runtime.driver()->cuCtxGetCurrent(&context);
    return context;
  }

  CUevent take_event(Runtime& runtime, CUcontext context) {
    auto& spare = spare_events_[context];
    CUevent event = nullptr;
    if (!spare.empty()) {
      event = spare.back();
      spare.pop_back();
    } else if (runtime.driver()->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
      return nullptr;
    }
    return event;
  }
  std::byte* take_buffer(Runtime& runtime) {
    void* buffer = nullptr;
    if (!spare_buffers_.empty()) {
      buffer = spare_buffers_.back();
      spare_buffers_.pop_back();
    } else if (runtime.driver()->cuMemHostAlloc(&buffer, kBufferBytes, CU_MEMHOSTALLOC_PORTABLE) != CUDA_SUCCESS) {
      return nullptr;
    }
    return static_cast<std::byte*>(buffer);
  }
  static constexpr unsigned kLaunchesPerQuery = 4;
  std::vector<Check> checks_;
  unsigned launches_ = 0;  // while looks were under way
  std::vector<CUstream> busy_;
  std::vector<std::uintptr_t> words_;
  std::map<CUcontext, std::vector<CUevent>> spare_events_;
  std::vector<std::byte*> spare_buffers_;
};

thread_local Checks checks;

}  // namespace

void look_at_tables(Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                    const runtime::LaunchHolds& holds, CUstream stream) {
  if (addresses.size() < 2 || !runtime.follows_tables()) return;
  // Two threads may count two launches as one.
  const std::uint32_t launch = facts.launches.load(std::memory_order_relaxed) + 1;
  facts.launches.store(launch, std::memory_order_relaxed);
  if (!std::has_single_bit(launch) && !facts.writes_pointers.load(std::memory_order_relaxed)) return;
  const gpu::RelaxedCapture relaxed(runtime.driver());
  checks.begin(runtime, facts, addresses, holds, stream);
}

void learn_of_tables(const Runtime& runtime) {
  if (checks.any()) checks.finish(runtime);
}

}  // namespace vmem::intercept
