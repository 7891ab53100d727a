#include "runtime/suballocator/depot.hpp"

#include <algorithm>

namespace vmem::runtime {

Depot::Queue* Depot::find(const Origin& origin) {
  const auto found = std::ranges::find(queues_, origin, &Queue::origin);
  return found == queues_.end() ? nullptr : &*found;
}

std::size_t Depot::take(const Origin& origin, std::span<std::uintptr_t> out, std::vector<Slab*>& emptied) {
  const std::lock_guard lock(mutex_);
  std::size_t count = take_waiting(origin, out);
  if (count == 0) count = take_free(out);
  if (count == 0) {
    settle_queues();
    count = take_free(out);
    collect_emptied(emptied);
  }
  return count;
}

std::size_t Depot::take_waiting(const Origin& origin, std::span<std::uintptr_t> out) {
  Queue* queue = find(origin);
  if (queue == nullptr) return 0;
  std::size_t count = 0;
  // The newest first: the oldest will soon be complete, and free for any stream.
  while (count < out.size() && !queue->batches.empty()) {
    auto& blocks = queue->batches.back().blocks;
    while (count < out.size() && !blocks.empty()) {
      out[count++] = blocks.back();
      blocks.pop_back();
    }
    if (blocks.empty()) queue->batches.pop_back();
  }
  if (queue->batches.empty()) queues_.erase(queues_.begin() + (queue - queues_.data()));
  return count;
}

std::size_t Depot::take_free(std::span<std::uintptr_t> out) {
  std::size_t count = 0;
  while (count < out.size() && !with_free_.empty()) {
    Slab& slab = *with_free_.begin()->second;
    count += slab.take(out.subspan(count));
    if (slab.free_blocks == 0) with_free_.erase(with_free_.begin());
  }
  return count;
}

std::size_t Depot::take_from(Slab& slab, std::span<std::uintptr_t> out) {
  const std::lock_guard lock(mutex_);
  const std::size_t count = slab.take(out);
  if (slab.free_blocks != 0) with_free_.emplace(slab.base, &slab);
  return count;
}

void Depot::put(const Origin& origin, Mark mark, std::span<const std::uintptr_t> blocks, std::vector<Slab*>& emptied) {
  if (blocks.empty()) return;
  const std::lock_guard lock(mutex_);
  Queue* queue = find(origin);
  if (queue == nullptr) queue = &queues_.emplace_back(Queue{origin, {}});
  if (queue->batches.empty() || queue->batches.back().mark != mark) queue->batches.push_back({mark, {}});
  auto& batch = queue->batches.back().blocks;
  batch.insert(batch.end(), blocks.begin(), blocks.end());
  // Each arriving batch settles up to two, so that a program that only frees does not accumulate
  // waiting blocks.
  constexpr std::size_t kSettledPerPut = 2;
  settle_some(*queue, kSettledPerPut);
  if (queue->batches.empty()) queues_.erase(queues_.begin() + (queue - queues_.data()));
  collect_emptied(emptied);
}

void Depot::settle(std::vector<Slab*>& emptied) {
  const std::lock_guard lock(mutex_);
  settle_queues();
  collect_emptied(emptied);
}

void Depot::settle_queues() {
  for (Queue& queue : queues_) settle_some(queue, queue.batches.size());
  std::erase_if(queues_, [](const Queue& queue) { return queue.batches.empty(); });
}

void Depot::settle_some(Queue& queue, std::size_t most) {
  for (; most > 0 && !queue.batches.empty() && complete(queue, queue.batches.front()); --most) {
    return_to_slabs(queue.batches.front().blocks);
    queue.batches.pop_front();
  }
}

bool Depot::complete(const Queue& queue, Batch& batch) {
  // A later mark covers the batch too. Only its own thread can mark a per-thread stream: that
  // thread reuses the blocks, or they wait until the end.
  if (!batch.mark && queue.origin.thread == 0) {
    if (auto mark = marks_.mark(queue.origin.stream)) batch.mark = *mark;
  }
  return batch.mark && marks_.complete(*batch.mark);
}

void Depot::return_to_slabs(std::span<const std::uintptr_t> blocks) {
  for (const std::uintptr_t block : blocks) {
    Slab& slab = map_.slab_at(block);
    if (slab.free_blocks == 0) with_free_.emplace(slab.base, &slab);
    slab.put(block);
    if (slab.wholly_free()) maybe_empty_.push_back(&slab);
  }
}

void Depot::collect_emptied(std::vector<Slab*>& emptied) {
  for (Slab* slab : maybe_empty_) {
    if (!slab->wholly_free() || with_free_.erase(slab->base) == 0) continue;
    emptied.push_back(slab);
  }
  maybe_empty_.clear();
}

bool Depot::holds(const Origin& origin) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::find(queues_, origin, &Queue::origin) != queues_.end();
}

void Depot::rename(const Origin& origin, const Origin& as, std::uint64_t mark) {
  const std::lock_guard lock(mutex_);
  Queue* queue = find(origin);
  if (queue == nullptr) return;
  queue->origin = as;
  for (Batch& batch : queue->batches) {
    if (!batch.mark) batch.mark = mark;
  }
}

std::size_t Depot::waiting_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = queues_.capacity() * sizeof(Queue);
  for (const Queue& queue : queues_) {
    for (const Batch& batch : queue.batches) bytes += sizeof(Batch) + batch.blocks.capacity() * sizeof(std::uintptr_t);
  }
  return bytes;
}

}  // namespace vmem::runtime
