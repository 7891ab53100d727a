#include "runtime/blocks/other_uses.hpp"

#include <algorithm>

namespace vmem::runtime {

void OtherUses::add_stream(std::uintptr_t base, const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_release);  // the allocation's free comes after it
  auto& streams = by_base_[base].streams;
  if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
}

void OtherUses::add_mark(std::uintptr_t base, std::uint64_t mark) {
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_release);
  by_base_[base].marks.push_back(mark);
}

OtherUses::Taken OtherUses::take(std::uintptr_t base) {
  Uses uses;
  if (any_.load(std::memory_order_acquire)) {
    const std::lock_guard lock(mutex_);
    if (auto node = by_base_.extract(base); !node.empty()) uses = std::move(node.mapped());
  }
  return {*this, base, std::move(uses)};
}

// Another thread may have added some since.
void OtherUses::put_back(std::uintptr_t base, Uses uses) {
  if (uses.streams.empty() && uses.marks.empty()) return;
  const std::lock_guard lock(mutex_);
  Uses& kept = by_base_[base];
  for (const StreamId& stream : uses.streams) {
    if (std::ranges::find(kept.streams, stream) == kept.streams.end()) kept.streams.push_back(stream);
  }
  kept.marks.insert(kept.marks.end(), uses.marks.begin(), uses.marks.end());
}

}  // namespace vmem::runtime
