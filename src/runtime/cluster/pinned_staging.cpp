#include "runtime/cluster/pinned_staging.hpp"

#include <algorithm>
#include <utility>

#include "pagetable/types.hpp"

namespace vmem::runtime {

// Buffers and reservations do not exceed the bound together, so giving back never needs memory.
PinnedStaging::PinnedStaging(gpu::DriverRef driver, std::uint64_t most_bytes)
    : driver_(std::move(driver)), most_bytes_(most_bytes) {
  spare_.reserve(most_bytes / pagetable::kGranuleBytes + 1);
}

bool PinnedStaging::reserve(std::uint64_t page_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  if (reserved_bytes_ != 0 && reserved_bytes_ + page_bytes > most_bytes_) return false;
  reserved_bytes_ += page_bytes;
  return true;
}

void PinnedStaging::cancel(std::uint64_t page_bytes) noexcept {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= page_bytes;
}

Result<gpu::PinnedBuffer> PinnedStaging::take(std::uint64_t page_bytes) {
  if (auto spare = spare_of(page_bytes)) return spare;
  // Without the lock: the driver takes its time.
  while (superfluous()) {
  }
  return gpu::PinnedBuffer::create(driver_, page_bytes);
}

gpu::PinnedBuffer PinnedStaging::spare_of(std::uint64_t page_bytes) {
  const std::lock_guard lock(mutex_);
  const auto fits = std::ranges::find(spare_, page_bytes, &gpu::PinnedBuffer::bytes);
  if (fits == spare_.end()) return {};
  std::swap(*fits, spare_.back());
  gpu::PinnedBuffer taken = std::move(spare_.back());
  spare_.pop_back();
  spare_bytes_ -= page_bytes;
  return taken;
}

// A spare buffer of another size, which has to go before a new one is created.
gpu::PinnedBuffer PinnedStaging::superfluous() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty() || reserved_bytes_ + spare_bytes_ <= most_bytes_) return {};
  gpu::PinnedBuffer taken = std::move(spare_.back());
  spare_.pop_back();
  spare_bytes_ -= taken.bytes();
  return taken;
}

void PinnedStaging::give_back(gpu::PinnedBuffer buffer) noexcept {
  const std::lock_guard lock(mutex_);
  reserved_bytes_ -= buffer.bytes();
  spare_bytes_ += buffer.bytes();
  spare_.push_back(std::move(buffer));
}

void PinnedStaging::drop_spare() noexcept {
  const std::lock_guard lock(mutex_);
  spare_.clear();
  spare_bytes_ = 0;
}

}  // namespace vmem::runtime
