#include "pagetable/holds.hpp"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>

namespace vmem::pagetable {

UseLog::UseLog() : tail_(new Chunk), head_(tail_) {}

UseLog::~UseLog() {
  while (head_ != nullptr) delete std::exchange(head_, head_->next.load());
  delete spare_.load();
}

bool UseLog::append(LoggedUse use) {
  LoggedUse& recent = recent_[(use.span.word() * 0x9e3779b97f4a7c15u) >> 61];
  if (recent.span.word() == use.span.word() && recent.stamp == use.stamp && recent.kind == use.kind &&
      recent.life == use.life && (use.kind == LoggedUse::Kind::declared || use.kind == LoggedUse::Kind::possible))
    return false;
  const bool filled_one = tail_filled_ == kChunkUses && next_chunk();
  recent = use;  // after next_chunk, which may throw: the use is not logged then
  tail_->uses[tail_filled_++] = use;
  tail_->filled.store(tail_filled_, std::memory_order_release);
  return filled_one;
}

void UseLog::reserve(std::size_t uses) {
  while (kChunkUses - tail_filled_ + ahead_.size() * kChunkUses < uses) {
    std::unique_ptr<Chunk> chunk(spare_.exchange(nullptr, std::memory_order_acquire));
    ahead_.push_back(chunk ? std::move(chunk) : std::make_unique<Chunk>());
  }
}

bool UseLog::next_chunk() {
  Chunk* chunk = nullptr;
  if (!ahead_.empty()) {
    chunk = ahead_.back().release();
    ahead_.pop_back();
  } else if (chunk = spare_.exchange(nullptr, std::memory_order_acquire); chunk == nullptr) {
    chunk = new Chunk;
  }
  Chunk* full = std::exchange(tail_, chunk);
  tail_filled_ = 0;
  full->next.store(chunk, std::memory_order_release);
  return true;
}

void UseLog::recycle(Chunk* chunk) {
  chunk->filled.store(0, std::memory_order_relaxed);
  chunk->next.store(nullptr, std::memory_order_relaxed);
  delete spare_.exchange(chunk, std::memory_order_acq_rel);
}

ThreadSlot::Block* ThreadSlot::block(std::uint32_t index) const {
  auto* found = const_cast<Block*>(&first_);
  for (std::uint32_t i = index / kBlockHolds; i > 0; --i) found = found->next.load(std::memory_order_relaxed);
  return found;
}

std::uint32_t ThreadSlot::put_behind(Span span, Hold hold, std::memory_order order) {
  Block* target = &first_;
  std::uint32_t base = 0;
  while (target->free == 0) {
    Block* next = target->next.load(std::memory_order_relaxed);
    if (next == nullptr) {
      next = new Block;
      target->next.store(next, std::memory_order_release);
    }
    target = next;
    base += kBlockHolds;
  }
  return base + put_into(*target, span, hold, order);
}

std::int64_t ThreadSlot::find(Hold hold, std::span<const std::uint32_t> taken) const {
  std::uint32_t base = 0;
  for (const Block* at = &first_; at != nullptr; at = at->next.load(std::memory_order_relaxed), base += kBlockHolds) {
    for (std::uint64_t used = ~at->free; used != 0; used &= used - 1) {
      const auto index = std::uint32_t(std::countr_zero(used));
      if (at->holds[index].address != hold.address || at->holds[index].bytes != hold.bytes) continue;
      if (std::find(taken.begin(), taken.end(), base + index) == taken.end()) return base + index;
    }
  }
  return -1;
}

bool ThreadSlot::holds_within(std::uintptr_t address, std::uint64_t bytes) const {
  for (const Block* at = &first_; at != nullptr; at = at->next.load(std::memory_order_relaxed)) {
    for (std::uint64_t used = ~at->free; used != 0; used &= used - 1) {
      if (at->holds[std::size_t(std::countr_zero(used))].address - address < bytes) return true;
    }
  }
  return false;
}

Span ThreadSlot::span(std::uint32_t index) const {
  return Span(block(index)->words[index % kBlockHolds].load(std::memory_order_relaxed));
}

// Where the kernel or a sandbox denies membarrier, launching threads execute their own barriers.
ThreadRegistry::ThreadRegistry() {
  static std::once_flag decided;
  std::call_once(decided, [] {
    const bool possible = ::syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
    ThreadSlot::remote_barriers.store(possible);
  });
}

bool ThreadRegistry::barrier_all_threads() const {
  if constexpr (ThreadSlot::kFences) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!ThreadSlot::remote_barriers.load(std::memory_order_relaxed)) return true;
    if (::syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0) return true;
    // A sandbox may deny it since. From now on the threads execute their own barriers, and the next
    // attempt can succeed; for this one a thread may have skipped its barrier.
    ThreadSlot::remote_barriers.store(false);
    return false;
  }
  return true;
}

ThreadRegistry::~ThreadRegistry() {
  for (auto& entry : slots_) {
    ThreadSlot* slot = entry.load();
    if (slot == nullptr) continue;
    for (ThreadSlot::Block* next = slot->first_.next.load(); next != nullptr;)
      delete std::exchange(next, next->next.load());
    delete slot;
  }
}

ThreadSlot* ThreadRegistry::claim() {
  const std::lock_guard lock(mutex_);
  const std::uint32_t count = count_.load(std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < count; ++i) {
    ThreadSlot* slot = slots_[i].load(std::memory_order_relaxed);
    if (!slot->in_use_.load(std::memory_order_acquire) && slot->held_ == 0) {
      slot->in_use_.store(true, std::memory_order_relaxed);
      return slot;
    }
  }
  if (count == kMaxSlots) return nullptr;
  auto* slot = new ThreadSlot;
  slot->in_use_.store(true, std::memory_order_relaxed);
  slots_[count].store(slot, std::memory_order_release);
  count_.store(count + 1, std::memory_order_seq_cst);
  return slot;
}

void ThreadRegistry::give_back(ThreadSlot* slot) {
  const std::lock_guard lock(mutex_);
  slot->in_use_.store(false, std::memory_order_release);
}

ThreadRegistry::Overlapping ThreadRegistry::overlapping_holds(std::uint32_t begin, std::uint32_t end) const {
  const std::uint32_t count = count_.load(std::memory_order_seq_cst);
  Overlapping found;
  for (std::uint32_t i = 0; i < count; ++i) {
    slots_[i].load(std::memory_order_acquire)->for_each([&](Span span) {
      if (!span.overlaps(begin, end)) return;
      ++(span.is_everything() ? found.of_everything : found.named);
    });
  }
  return found;
}

bool ThreadRegistry::any_hold() const { return holds_overlap(0, ~std::uint32_t{0}); }

std::uint64_t ThreadRegistry::acquires() const {
  std::uint64_t sum = 0;
  const std::uint32_t count = count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < count; ++i) {
    sum += slots_[i].load(std::memory_order_acquire)->acquires_.load(std::memory_order_relaxed);
  }
  return sum;
}

}  // namespace vmem::pagetable
