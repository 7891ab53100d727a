#include "tiers/piece_sums.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace vmem::tiers {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

}  // namespace

Result<PieceSums::Sums> PieceSums::take(const gpu::DriverRef& driver, std::uint64_t slot_bytes) {
  const std::size_t count = gpu::pieces_of(slot_bytes / sizeof(std::uint64_t));
  if (auto& ready = free_[count]; !ready.empty()) {
    const Sums sums = ready.back();
    ready.pop_back();
    return sums;
  }
  if (rest_.size() < count) {
    if (failed_) return Sums();
    auto made = gpu::PinnedBuffer::create(driver, std::max(kChunkBytes, count * sizeof(gpu::Fingerprint)));
    if (!made) {
      if (made.error().status == VMEM_ERROR_DEVICE_LOST) return std::unexpected(std::move(made).error());
      VMEM_LOG_WARN("pages of which a part was written will be copied out of HBM as a whole: {}", made.error().message);
      failed_ = true;
      return Sums();
    }
    chunks_.push_back(std::move(*made));
    rest_ = {reinterpret_cast<gpu::Fingerprint*>(chunks_.back().data()),
             chunks_.back().bytes() / sizeof(gpu::Fingerprint)};
  }
  const Sums sums = rest_.first(count);
  rest_ = rest_.subspan(count);
  return sums;
}

void PieceSums::give_back(Sums sums) {
  if (!sums.empty()) free_[sums.size()].push_back(sums);
}

void PieceSums::reset() {
  free_.clear();
  rest_ = {};
  chunks_.clear();
}

}  // namespace vmem::tiers
