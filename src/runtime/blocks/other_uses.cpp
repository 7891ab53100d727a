#include "runtime/blocks/other_uses.hpp"

#include <algorithm>

namespace vmem::runtime {

// REQUIRES mutex_.
OtherUses::Uses& OtherUses::uses_of(std::uintptr_t base) {
  const auto found = by_base_.find(base);
  return found == by_base_.end() ? by_base_.emplace(base, Uses())->second : found->second;
}

void OtherUses::add_stream(std::uintptr_t base, const StreamId& stream) {
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_release);  // the allocation's free comes after it
  auto& streams = uses_of(base).streams;
  if (std::ranges::find(streams, stream) == streams.end()) streams.push_back(stream);
}

void OtherUses::add_mark(std::uintptr_t base, std::uint64_t mark) {
  const std::lock_guard lock(mutex_);
  any_.store(true, std::memory_order_release);
  uses_of(base).marks.push_back(mark);
}

OtherUses::Taken OtherUses::take(std::uintptr_t base) {
  if (!any_.load(std::memory_order_acquire)) return {*this, {}};
  ByBase::node_type first;
  {
    const std::lock_guard lock(mutex_);
    first = by_base_.extract(base);
  }
  if (first.empty()) return {*this, {}};
  Taken taken(*this, std::move(first));
  const std::lock_guard lock(mutex_);
  for (auto more = by_base_.find(base); more != by_base_.end(); more = by_base_.find(base)) {
    taken.add(more->second);
    by_base_.erase(more);
  }
  return taken;
}

void OtherUses::Taken::add(const Uses& more) {
  Uses& all = node_.mapped();
  all.marks.reserve(all.marks.size() + more.marks.size());
  all.streams.insert(all.streams.end(), more.streams.begin(), more.streams.end());
  all.marks.insert(all.marks.end(), more.marks.begin(), more.marks.end());
}

void OtherUses::put_back(ByBase::node_type node) noexcept {
  const std::lock_guard lock(mutex_);
  by_base_.insert(std::move(node));
}

}  // namespace vmem::runtime
