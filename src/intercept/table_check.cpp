#include "intercept/table_check.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/memory_reserve.hpp"
#include "gpu/handles.hpp"
#include "intercept/hook.hpp"

namespace vmem::intercept {
namespace {

using runtime::PointerTables;
using runtime::Runtime;

// Limits per launch: bytes copied and tables inspected, smallest first; and inspections in flight
// per thread. Small allocations are copied as a whole, of large ones the expected table.
constexpr std::size_t kLookBytes = 1 << 20;
constexpr std::size_t kTablesMax = 64;
constexpr std::size_t kLooksMax = 16;
// In large memory a table ends before a run of this many words that are no addresses: later words
// may be remains of other tables.
constexpr std::size_t kEndWords = 16;

struct Table {
  std::uintptr_t base;
  std::size_t bytes, offset;  // offset: in the buffer
  bool small;                 // covers a whole allocation
};

// The copies made around a launch, and what they may find.
struct Copies {
  FunctionFacts* facts = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUevent event = nullptr;
  std::byte* before = nullptr;  // null: the function is known to write pointers
  std::byte* after = nullptr;
  std::vector<Table> tables;
  std::shared_ptr<PointerTables::Look> look;
};

// Unused pinned buffers and events, shared by all threads: a thread may end while its copies are in
// flight.
class Spares {
 public:
  std::byte* take_buffer(const Runtime& runtime) {
    {
      const std::lock_guard lock(mutex_);
      reclaim(runtime);
      if (!buffers_.empty()) return take_last(buffers_);
    }
    void* buffer = nullptr;
    const bool made = runtime.driver()->cuMemHostAlloc(&buffer, kLookBytes, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS;
    return made ? static_cast<std::byte*>(buffer) : nullptr;
  }
  CUevent take_event(const Runtime& runtime, CUcontext context) {
    {
      const std::lock_guard lock(mutex_);
      if (auto& events = events_[context]; !events.empty()) return take_last(events);
    }
    CUevent event = nullptr;
    const bool made = runtime.driver()->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS;
    return made ? event : nullptr;
  }
  // What there is no memory to list is leaked.
  void put(const Copies& copies) noexcept {
    const std::lock_guard lock(mutex_);
    put_locked(copies);
  }
  // The look's copies may be in flight until its event.
  void put_when_over(Copies copies) noexcept {
    const std::lock_guard lock(mutex_);
    (void)ran_within_memory([&] { abandoned_.push_back(std::move(copies)); });
  }

 private:
  template <class T>
  static T take_last(std::vector<T>& from) {
    T last = from.back();
    from.pop_back();
    return last;
  }
  void put_locked(const Copies& copies) noexcept {
    (void)ran_within_memory([&] {
      if (copies.event != nullptr) events_[copies.context].push_back(copies.event);
      for (std::byte* each : {copies.before, copies.after}) {
        if (each != nullptr) buffers_.push_back(each);
      }
    });
  }
  void reclaim(const Runtime& runtime) {
    std::erase_if(abandoned_, [&](const Copies& copies) {
      if (runtime.driver()->cuEventQuery(copies.event) != CUDA_SUCCESS) return false;
      put_locked(copies);
      return true;
    });
  }
  std::mutex mutex_;
  std::vector<std::byte*> buffers_;
  std::map<CUcontext, std::vector<CUevent>> events_;
  std::vector<Copies> abandoned_;
};
Spares& spares() {
  static auto* all = new Spares;
  return *all;
}

std::vector<std::uintptr_t> allocations_reached(const Runtime& runtime, std::span<const std::uintptr_t> addresses,
                                                const runtime::LaunchHolds& holds) {
  auto reached = runtime.addresses().allocations_among(addresses);
  // The kernel may have copied targets of a table passed to it into another table.
  reached.insert(reached.end(), holds.reachable.begin(), holds.reachable.end());
  std::ranges::sort(reached);
  const auto repeated = std::ranges::unique(reached);
  reached.erase(repeated.begin(), repeated.end());
  return reached;
}

}  // namespace

class TableLooks::Impl {
 public:
  Impl() { looks_.reserve(kLooksMax); }
  ~Impl() {
    for (Copies& copies : looks_) spares().put_when_over(std::move(copies));
  }

  void before(const Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
              CUstream stream) {
    if (looks_.size() >= kLooksMax) return;
    const bool writes = facts.writes_pointers.load(std::memory_order_relaxed);
    const gpu::RelaxedCapture relaxed(runtime.driver());
    current_ = {.facts = &facts, .stream = stream, .tables = tables_among(runtime, addresses)};
    if (current_.tables.empty()) return;
    (void)runtime.driver()->cuCtxGetCurrent(&current_.context);
    current_.event = spares().take_event(runtime, current_.context);
    current_.after = spares().take_buffer(runtime);
    if (!writes) current_.before = spares().take_buffer(runtime);
    if (current_.event == nullptr || current_.after == nullptr || (!writes && current_.before == nullptr)) {
      spares().put(std::exchange(current_, {}));
    } else if (!writes && !copy_out(runtime, current_.before)) {
      forget(runtime);
    }
  }

  void after(const Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
             const runtime::LaunchHolds& holds) {
    PointerTables* const known = runtime.launches().pointer_tables();
    if (known == nullptr) return forget(runtime);
    if (current_.event != nullptr) {
      const gpu::RelaxedCapture relaxed(runtime.driver());
      const auto& driver = runtime.driver();
      if (copy_out(runtime, current_.after) && driver->cuEventRecord(current_.event, current_.stream) == CUDA_SUCCESS) {
        current_.look = known->begin_look(allocations_reached(runtime, addresses, holds));
        for (const Table& table : current_.tables) known->note(table.base, current_.look);
        if (!facts.writes_pointers.load(std::memory_order_relaxed))
          facts.next_look.store(2 * facts.launches.load(std::memory_order_relaxed), std::memory_order_relaxed);
        looks_.push_back(std::exchange(current_, {}));
        return;
      }
      forget(runtime);
    }
    if (facts.may_write_pointers()) doubt(runtime, *known, facts, addresses, holds);
  }

  // The launch was not queued, or a copy failed. Earlier copies may be in flight. If no event can
  // mark their end, the buffers are leaked, because the driver may still write to them.
  void forget(const Runtime& runtime) {
    if (current_.event == nullptr) return;
    const gpu::RelaxedCapture relaxed(runtime.driver());
    Copies copies = std::exchange(current_, {});
    if (runtime.driver()->cuEventRecord(copies.event, copies.stream) == CUDA_SUCCESS)
      spares().put_when_over(std::move(copies));
  }

  // Inspections on one stream end in order. A driver call costs as much as the rest of a launch, so
  // only every kLaunchesPerQuery-th call queries: each completed inspection once, and one
  // incomplete per stream.
  void learn(const Runtime& runtime) {
    if (++launches_ % kLaunchesPerQuery != 0) return;
    PointerTables* const known = runtime.launches().pointer_tables();
    if (known == nullptr) return;
    const gpu::RelaxedCapture relaxed(runtime.driver());
    busy_.clear();
    for (auto at = looks_.begin(); at != looks_.end();) {
      const bool is_busy = std::ranges::find(busy_, at->stream) != busy_.end();
      if (is_busy || runtime.driver()->cuEventQuery(at->event) != CUDA_SUCCESS) {
        if (!is_busy) busy_.push_back(at->stream);
        ++at;
        continue;
      }
      learn_from(runtime, *known, *at);
      spares().put(*at);
      at = looks_.erase(at);
    }
    std::erase_if(doubts_, [&](const auto& each) { return resolve(*known, *each.first, each.second); });
  }
  bool any() const { return !looks_.empty() || !doubts_.empty(); }
  bool begun() const { return current_.event != nullptr; }

 private:
  // What uninspected launches of a kernel may have written, and where.
  struct Doubts {
    std::shared_ptr<PointerTables::Look> look;
    std::set<std::uintptr_t> tables;
  };

  static std::vector<Table> tables_among(const Runtime& runtime, std::span<const std::uintptr_t> addresses) {
    std::vector<Table> all;
    for (const std::uintptr_t address : addresses) {
      const auto found = runtime.addresses().allocation_at(address);
      // Memory used in place is left alone. The driver's copies could read it: pages are mapped for
      // devices only, and just ranges of both kinds that the host may access crash the driver.
      if (!found || runtime.addresses().in_place(address)) continue;
      const bool small = runtime.addresses().is_small(address);
      const std::uintptr_t base = small ? found->base : address;
      const std::size_t there = found->base + found->bytes - base;
      if (base % sizeof(std::uintptr_t) != 0) continue;
      const std::size_t bytes = small ? there : std::min<std::size_t>(there, PointerTables::kAround);
      all.push_back({base, bytes / sizeof(std::uintptr_t) * sizeof(std::uintptr_t), 0, small});
    }
    std::ranges::sort(
        all, [](const Table& a, const Table& b) { return a.bytes != b.bytes ? a.bytes < b.bytes : a.base < b.base; });
    const auto repeated = std::ranges::unique(all, {}, &Table::base);
    all.erase(repeated.begin(), repeated.end());
    std::size_t used = 0, kept = 0;
    for (; kept < std::min(all.size(), kTablesMax) && used + all[kept].bytes <= kLookBytes; ++kept) {
      all[kept].offset = used;
      used += all[kept].bytes;
    }
    all.resize(kept);
    return all;
  }

  bool copy_out(const Runtime& runtime, std::byte* to) const {
    return std::ranges::all_of(current_.tables, [&](const Table& table) {
      return runtime.driver()->cuMemcpyDtoHAsync(to + table.offset, table.base, table.bytes, current_.stream) ==
             CUDA_SUCCESS;
    });
  }

  void learn_from(const Runtime& runtime, PointerTables& known, const Copies& copies) {
    bool writes = false;
    for (const Table& table : copies.tables) {
      const std::size_t count = table.bytes / sizeof(std::uintptr_t);
      words_.resize(count);
      std::memcpy(words_.data(), copies.after + table.offset, table.bytes);
      if (copies.before != nullptr) {
        before_.resize(count);
        std::memcpy(before_.data(), copies.before + table.offset, table.bytes);
        for (std::size_t i = 0; i < count; ++i)
          writes = writes || (words_[i] != before_[i] && ours(&runtime, words_[i]));
      }
      const std::size_t end = table.small ? count : end_of_table(runtime);
      const auto targets = runtime.addresses().allocations_among(std::span(words_).first(end));
      known.settle(table.base, *copies.look, targets, end * sizeof(std::uintptr_t), table.small || end < count);
    }
    if (writes) {
      if (!copies.facts->writes_pointers.exchange(true, std::memory_order_relaxed))
        VMEM_LOG_DEBUG("{} fills pointer tables", copies.facts->name);
      copies.facts->next_look.store(0, std::memory_order_relaxed);
    }
    copies.facts->looked.store(true, std::memory_order_relaxed);
  }
  std::size_t end_of_table(const Runtime& runtime) const {
    std::size_t end = 0;
    for (std::size_t i = 0; i < words_.size() && i - end < kEndWords; ++i) {
      if (ours(&runtime, words_[i])) end = i + 1;
    }
    return end;
  }

  void doubt(const Runtime& runtime, PointerTables& known, FunctionFacts& facts,
             std::span<const std::uintptr_t> addresses, const runtime::LaunchHolds& holds) {
    const auto reached = allocations_reached(runtime, addresses, holds);
    const bool writes = facts.writes_pointers.load(std::memory_order_relaxed);
    // Null: the kernel is known to write.
    Doubts* const undecided = writes ? nullptr : &doubts_[&facts];
    if (undecided != nullptr) {
      auto& look = undecided->look;
      if (look == nullptr) look = known.begin_look({});
      std::vector<std::uintptr_t> both;
      std::ranges::set_union(look->doubts, reached, std::back_inserter(both));
      look->doubts = std::move(both);
    }
    for (const std::uintptr_t address : addresses) {
      const auto found = runtime.addresses().allocation_at(address);
      if (!found) continue;
      const std::uintptr_t table = runtime.addresses().is_small(address) ? found->base : address;
      if (undecided == nullptr) {
        known.believe(table, reached);
      } else if (undecided->tables.insert(table).second) {
        known.note(table, undecided->look);
      }
    }
  }
  // False: the function has still not been inspected.
  static bool resolve(PointerTables& known, const FunctionFacts& facts, const Doubts& doubts) {
    if (!facts.looked.load(std::memory_order_relaxed)) return false;
    const bool writes = facts.writes_pointers.load(std::memory_order_relaxed);
    for (const std::uintptr_t table : doubts.tables) {
      const bool there = known.drop(table, *doubts.look);
      if (writes && there) known.believe(table, doubts.look->doubts);
    }
    return true;
  }

  static constexpr unsigned kLaunchesPerQuery = 4;
  Copies current_;
  std::vector<Copies> looks_;
  std::map<const FunctionFacts*, Doubts> doubts_;
  unsigned launches_ = 0;  // while inspections were in flight
  std::vector<CUstream> busy_;
  std::vector<std::uintptr_t> words_, before_;
};

TableLooks::TableLooks() : impl_(std::make_unique<Impl>()) {}
TableLooks::~TableLooks() = default;

void TableLooks::learn_completed(const Runtime& runtime) {
  impl_->learn(runtime);
  update();
}

void TableLooks::look_before(const Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                             CUstream stream) {
  try {
    impl_->before(runtime, facts, addresses, stream);
  } catch (...) {
    forget_begun(runtime);
    throw;
  }
  update();
}

void TableLooks::look_after(const Runtime& runtime, FunctionFacts& facts, std::span<const std::uintptr_t> addresses,
                            const runtime::LaunchHolds& holds) {
  try {
    impl_->after(runtime, facts, addresses, holds);
  } catch (...) {
    forget_begun(runtime);
    throw;
  }
  update();
}

void TableLooks::forget_begun(const Runtime& runtime) {
  impl_->forget(runtime);
  update();
}

void TableLooks::update() {
  under_way_ = impl_->any();
  begun_ = impl_->begun();
}

}  // namespace vmem::intercept
