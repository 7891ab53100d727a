#include "runtime/suballocator/thread_cache.hpp"

#include <algorithm>

namespace vmem::runtime {

std::size_t Shelf::pop_older_half(std::uint32_t size_class, std::array<std::uintptr_t, kMostBin>& out) noexcept {
  const std::span slots(&slots_[kFirst[size_class]], counts_[size_class]);
  const std::size_t half = (slots.size() + 1) / 2;
  std::size_t taken = 0;
  for (auto& slot : slots.first(half)) {
    if (const std::uintptr_t block = slot.exchange(0, std::memory_order_acquire); block != 0) out[taken++] = block;
  }
  std::uint8_t kept = 0;
  for (auto& slot : slots.subspan(half)) {
    if (const std::uintptr_t block = slot.exchange(0, std::memory_order_acquire); block != 0) {
      slots[kept++].store(block, std::memory_order_release);
    }
  }
  counts_[size_class] = kept;
  return taken;
}

std::size_t Shelf::take_all(std::uint32_t size_class, std::array<std::uintptr_t, kMostBin>& out) noexcept {
  std::size_t taken = 0;
  for (std::size_t i = kFirst[size_class]; i < kFirst[size_class + 1]; ++i) {
    if (slots_[i].load(std::memory_order_relaxed) == 0) continue;
    if (const std::uintptr_t block = slots_[i].exchange(0, std::memory_order_acquire); block != 0) out[taken++] = block;
  }
  return taken;
}

Shelf* ThreadCache::search(int device, const StreamId& stream) noexcept {
  for (const auto& candidate : shelves) {
    if (!candidate->is_for(device, stream)) continue;
    last_ = candidate.get();
    last_->last_used = ++tick_;
    return last_;
  }
  return nullptr;
}

Shelf& ThreadCache::oldest_or_new() {
  if (shelves.size() == kMostShelves)
    return **std::ranges::min_element(shelves, {}, [](const auto& s) { return s->last_used; });
  auto shelf = std::make_unique<Shelf>();
  const std::lock_guard lock(mutex);
  return *shelves.emplace_back(std::move(shelf));
}

void ThreadCache::dedicate(Shelf& shelf, int device, const StreamId& stream) {
  const std::lock_guard lock(mutex);
  shelf.device = device;
  shelf.stream = stream;
  last_ = &shelf;
  shelf.last_used = ++tick_;
}

}  // namespace vmem::runtime
