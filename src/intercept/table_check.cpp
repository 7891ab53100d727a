#include "intercept/table_check.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <vector>

#include "base/log.hpp"
#include "gpu/handles.hpp"
#include "intercept/references.hpp"

namespace vmem::intercept {
namespace {

using runtime::Runtime;

// So much is looked at, of a small allocation and behind a pointer into a large one.
constexpr std::size_t kTableBytes = 64 << 10;
constexpr std::size_t kInLargeBytes = 16 << 10;
constexpr std::size_t kBufferBytes = 256 << 10;
constexpr std::size_t kChecksMax = 32;

// The calling thread's looks under way. Ends with the thread, and leaves its buffers: the process has few such threads, and copies
// into them may be under way.
class Checks {
 public:
  void begin(Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
             const runtime::LaunchHolds& holds, CUstream stream) {
    if (checks_.size() >= kChecksMax) return;
    Check check{&facts, take_event(runtime), take_buffer(runtime), {}};
    if (check.event == nullptr || check.buffer == nullptr) return give_up(check);
    std::size_t used = 0;
    for (const std::uintptr_t address : addresses) {
      const auto found = runtime.allocation_at(address);
      if (!found) continue;
      const bool small = runtime.is_small(address);
      const std::uintptr_t base = small ? found->base : address;
      const std::size_t there = found->base + found->bytes - base;
      const std::size_t bytes = std::min(there, small ? kTableBytes : kInLargeBytes);
      const bool known = std::ranges::find(check.tables, base, &Table::base) != check.tables.end();
      if (known || base % sizeof(std::uintptr_t) != 0 || used + bytes > kBufferBytes) continue;
      if (runtime.driver()->cuMemcpyDtoHAsync(check.buffer + used, base, bytes, stream) != CUDA_SUCCESS)
        return give_up(check);
      check.tables.push_back({base, used, bytes, small, !small || bytes == found->bytes, {}});
      used += bytes;
    }
    if (check.tables.empty() || runtime.driver()->cuEventRecord(check.event, stream) != CUDA_SUCCESS)
      return give_up(check);
    // What a table that it was given leads to may have been copied into another.
    words_.assign(addresses.begin(), addresses.end());
    for (const auto& held : holds.all()) {
      if (held.feared) words_.push_back(runtime.address_of(held));
    }
    for (Table& table : check.tables) table.note = runtime.note_pointer_table(table.base, words_);
    checks_.push_back(std::move(check));
  }

  void finish(const Runtime& runtime) {
    while (!checks_.empty() && runtime.driver()->cuEventQuery(checks_.front().event) == CUDA_SUCCESS) {
      Check& check = checks_.front();
      for (const Table& table : check.tables) {
        const bool fresh = runtime.settle_pointer_table(table.note, words_of(runtime, check, table), table.whole);
        if (fresh && !check.facts->writes_pointers.exchange(true, std::memory_order_relaxed))
          VMEM_LOG_DEBUG("{} fills pointer tables", check.facts->name);
      }
      check.facts->looked.store(true, std::memory_order_relaxed);
      spare_events_.push_back(check.event);
      spare_buffers_.push_back(check.buffer);
      checks_.pop_front();
    }
  }
  bool any() const { return !checks_.empty(); }

 private:
  struct Table {
    std::uintptr_t base;
    std::size_t offset, bytes;
    bool small;  // an allocation
    bool whole;  // so much is all of it; a table in a large allocation ends where its pointers end
    Runtime::TableNote note;
  };
  struct Check {
    FunctionFacts* facts;
    CUevent event;
    std::byte* buffer;
    std::vector<Table> tables;
  };

  std::span<const std::uintptr_t> words_of(const Runtime& runtime, const Check& check, const Table& table) {
    words_.resize(table.bytes / sizeof(std::uintptr_t));
    std::memcpy(words_.data(), check.buffer + table.offset, words_.size() * sizeof(std::uintptr_t));
    if (table.small) return words_;
    const auto end = std::ranges::find_if(words_, [&](std::uintptr_t word) { return !ours(&runtime, word); });
    return {words_.begin(), end};
  }

  CUevent take_event(Runtime& runtime) {
    CUevent event = nullptr;
    if (!spare_events_.empty()) {
      event = spare_events_.back();
      spare_events_.pop_back();
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
  // A copy may be under way into the buffer, so only the event can serve again.
  void give_up(const Check& check) {
    if (check.event != nullptr) spare_events_.push_back(check.event);
    if (check.buffer != nullptr && check.tables.empty()) spare_buffers_.push_back(check.buffer);
  }

  std::deque<Check> checks_;
  std::vector<std::uintptr_t> words_;
  std::vector<CUevent> spare_events_;
  std::vector<std::byte*> spare_buffers_;
};

thread_local Checks checks;

}  // namespace

void look_at_tables(Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                    const runtime::LaunchHolds& holds, CUstream stream) {
  if (addresses.size() < 2 || !runtime.follows_tables()) return;
  const std::uint32_t launch = facts.launches.fetch_add(1, std::memory_order_relaxed) + 1;
  if (!std::has_single_bit(launch) && !facts.writes_pointers.load(std::memory_order_relaxed)) return;
  const gpu::RelaxedCapture relaxed(runtime.driver());
  checks.begin(runtime, facts, addresses, holds, stream);
}

void learn_of_tables(const Runtime& runtime) {
  if (!checks.any()) return;
  const gpu::RelaxedCapture relaxed(runtime.driver());
  checks.finish(runtime);
}

}  // namespace vmem::intercept
